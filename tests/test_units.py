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
    assert isinstance(one + one, Bytes) and isinstance(3 * one, Bytes) and isinstance(one // 2, Bytes)
    assert isinstance(sum([one, one], Bytes(0)), Bytes)
    assert type(one / one) is float and not isinstance(one * one, Bytes)
    assert isinstance(one - Bytes(24), Bytes) and one - Bytes(24) == 1000


def test_two_kinds_of_bytes_add_up_to_the_first():
    class Sent(Bytes): ...

    class Kept(Bytes): ...

    assert type(Sent(5) + Kept(3)) is Sent and Kept(5) - Sent(3) == Bytes(2)


@pytest.mark.parametrize(
    "wrong", [lambda: Bytes(1) + Flops(1), lambda: Seconds(1) - Bytes(1), lambda: Flops(1) + Count(1)]
)
def test_bytes_and_flops_do_not_add(wrong):
    with pytest.raises(TypeError, match="cannot add or subtract"):
        wrong()


def test_an_unknown_unit_is_refused_with_the_units_there_are():
    with pytest.raises(ValueError, match="no unit 'GFLOP'.*GiB"):
        Bytes(1).to("GFLOP")
    with pytest.raises(ValueError, match="unknown unit 'bananas'"):
        quantity(1, "bananas")


def test_every_unit_name_round_trips():
    for unit, kind in UNITS.items():
        value = quantity(3, unit)
        assert type(value) is kind and value.to(unit) == pytest.approx(3)
