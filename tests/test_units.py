"""Units: GB is never GiB, and quantities keep their unit."""

import pytest

from course_kit.units import UNITS, Bytes, Count, Flops, FlopsPerSecond, Ratio, Seconds, quantity


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (Bytes(2_000_000_000), "GB", "2.00 GB"),
        (Bytes(2_000_000_000), "GiB", "1.86 GiB"),
        (Bytes(2_000_000_000), ".4GiB", "1.8626 GiB"),
        (Bytes(350_000_000_000), ".0GB", "350 GB"),
        (Bytes(1023), "", "1,023 B"),
        (Bytes(1024), "", "1.00 KiB"),
        (Bytes(0), "", "0 B"),
        (Bytes(-2048), "", "-2.00 KiB"),
        (Bytes(1_234_567), ",d", "1,234,567"),
        (Flops(314 * 10**21), "PF-day", "3,634.26 PF-day"),
        (FlopsPerSecond(989.4e12), "", "989.40 TFLOP/s"),
        (FlopsPerSecond(4e14), ".0TFLOP/s", "400 TFLOP/s"),
        (FlopsPerSecond(0.5 * 312e12), ".1PFLOP/s", "0.2 PFLOP/s"),
        (Seconds(0.0012), "", "1.20 ms"),
        (Seconds(90), "", "1.50 min"),
        (Count(124_439_808), "", "124,439,808"),
        (Count(124_439_808), ".1million", "124.4 million"),
        (Ratio(0.5), ".3", "0.500"),
    ],
)
def test_a_quantity_prints_in_the_unit_that_was_asked_for(value, spec, text):
    assert format(value, spec) == text


def test_sums_and_multiples_keep_the_unit_and_ratios_lose_it():
    one = Bytes(1024)
    assert [type(value) for value in (one + one, 3 * one, one // 2, sum([one, one], Bytes(0)))] == [Bytes] * 4
    assert type(one / one) is float and not isinstance(one * one, Bytes)
    assert isinstance(one - Bytes(24), Bytes) and one - Bytes(24) == 1000
    sent, kept = (type(name, (Bytes,), {}) for name in ("Sent", "Kept"))  # two kinds of bytes add up to the first
    assert type(sent(5) + kept(3)) is sent and kept(5) - sent(3) == Bytes(2)


WRONG = [
    (lambda: Bytes(1) + Flops(1), TypeError, "cannot add or subtract"),
    (lambda: Seconds(1) - Bytes(1), TypeError, "cannot add or subtract"),
    (lambda: Flops(1) + Count(1), TypeError, "cannot add or subtract"),
    (lambda: Bytes(1).to("GFLOP"), ValueError, "no unit 'GFLOP'.*GiB"),
    (lambda: quantity(1, "bananas"), ValueError, "unknown unit 'bananas'"),
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG)
def test_units_that_do_not_fit_or_are_not_there_are_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_every_unit_name_round_trips():
    for unit, kind in UNITS.items():
        value = quantity(3, unit)
        assert type(value) is kind and value.to(unit) == pytest.approx(3)
