"""The explorer's JavaScript computes what FloatFormat computes, to the bit."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import astuple

import pytest
import torch

from course_lib.numerics.formats import FORMATS, FP8_E4M3FN, FP16, FloatFormat
from course_pages.lesson01.explorer import BitExplorer, bit_rows, describe
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser

MORE = (
    FloatFormat(4, 3, specials="fn", overflow="saturate"),
    FloatFormat(4, 3, specials="fn", overflow="nan", name="fn_overflows_to_nan"),
    FloatFormat(3, 4, overflow="saturate", name="ieee_saturates"),
    FloatFormat(5, 1, bias=3, name="shifted"),
    FloatFormat(4, 0, specials="finite", name="powers_of_two"),
)
"""Choices that the well-known formats do not make."""
SOON = (FP16, FP8_E4M3FN, MORE[1])
"""Those that do not wait for the night."""

# Doubles travel as the 64 bits that they are, because JSON knows neither nan nor infinity.
COMPUTE = """({ format, doubles, patterns, step }) => {
    const view = new DataView(new ArrayBuffer(8));
    const toDouble = (hex) => { view.setBigUint64(0, BigInt(hex)); return view.getFloat64(0); };
    const toHex = (x) => {
        if (Number.isNaN(x)) return 'nan';
        view.setFloat64(0, x); return view.getBigUint64(0).toString(16);
    };
    const { prepare, encode, decode, neighbours } = window.explorer;
    const form = prepare(format);
    return {
        encoded: doubles.map((hex) => encode(form, toDouble(hex))?.toString(16) ?? null),
        decoded: patterns.map((hex) => toHex(decode(form, BigInt(hex)))),
        neighbours: patterns.filter((_, i) => i % step === 0).map((hex) => neighbours(form, BigInt(hex)).map(toHex)),
    };
}"""


def as_hex(doubles: torch.Tensor) -> list[str]:
    """The bits of doubles, or "nan"; a nan's own bits are nobody's business."""
    patterns = doubles.double().view(torch.int64).tolist()
    nans = doubles.isnan().tolist()
    return ["nan" if nan else f"{pattern % 2**64:x}" for pattern, nan in zip(patterns, nans, strict=True)]


def patterns_of(form: FloatFormat) -> torch.Tensor:
    """Every pattern of a small format; of a large one the first and last of each sign, and many at random."""
    if form.bits <= 16:
        return torch.arange(2**form.bits)
    top, generator = 2 ** (form.bits - 1), torch.Generator().manual_seed(form.bits)
    inside = torch.randint(0, form.max_pattern, (2000,), generator=generator)
    edges = torch.tensor([0, 1, 2, 2**form.fraction_bits - 1, 2**form.fraction_bits, form.max_pattern - 1,
                          form.max_pattern, form.max_pattern + 1, form.max_pattern + 2])  # fmt: skip
    positive = torch.cat([edges, inside])
    return torch.cat([positive, positive + (top if form.bits < 64 else -top)])


def doubles_around(form: FloatFormat) -> torch.Tensor:
    """Numbers of the format, the ties between neighbours, the doubles beside each tie, and doubles of any size."""
    numbers = form.decode(patterns_of(form)[:: 16 if form.bits == 16 else 1])
    numbers = numbers[numbers.isfinite()]
    _, above = form.neighbours(numbers)
    ties = numbers / 2 + torch.where(above.isfinite(), above, numbers) / 2
    infinity = torch.full_like(ties, math.inf)
    edge = form.max + float(form.spacing(form.max)) / 2
    draw_from = random.Random(form.bits)
    anything = torch.tensor([draw_from.getrandbits(64) - 2**63 for _ in range(3000)]).view(torch.float64)
    fixed = torch.tensor([0.0, -0.0, math.inf, -math.inf, edge, -edge, math.nextafter(edge, 0), 5e-324, -5e-324, 1e308])
    around = [numbers, ties, ties.nextafter(infinity), ties.nextafter(-infinity), anything, fixed.double()]
    doubles = torch.cat(around)
    return doubles[~doubles.isnan()]


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=() if form in SOON else pytest.mark.nightly, id=str(form)) for form in FORMATS + MORE],
)
def test_javascript_equals_python(alone: Alone, form: FloatFormat) -> None:
    doubles, patterns = doubles_around(form), patterns_of(form)
    step = 16 if form.bits == 16 else 1  # all patterns are encoded and decoded; neighbours take longer
    found = alone(BitExplorer).evaluate(
        COMPUTE,
        {
            "format": describe(form),
            "doubles": [f"0x{each}" for each in as_hex(doubles)],
            "step": step,
            "patterns": [hex(pattern % 2**form.bits) for pattern in patterns.tolist()],
        },
    )
    decoded = form.decode(patterns)
    below, above = form.neighbours(decoded[::step])
    assert found["encoded"] == [f"{each % 2**form.bits:x}" for each in form.encode(doubles).tolist()]
    assert found["decoded"] == as_hex(decoded)
    expected = [list(pair) for pair in zip(as_hex(below), as_hex(above), strict=True)]
    reachable = (
        form.round(decoded) == decoded
    ).tolist()  # where overflow saturates, inf is a pattern but never a result
    assert list(itertools.compress(found["neighbours"], reachable)) == list(itertools.compress(expected, reachable))


def test_rows_equal_those_of_python(alone: Alone) -> None:
    """Every field of a row, notes in words included, at the edges of each format seen through all others."""
    edges = [(f.max, f.min_normal, f.min_subnormal, f.min_subnormal / 2, f.max * 1.01, 1 + f.eps / 2) for f in FORMATS]
    values = sorted({sign * each for each in itertools.chain(*edges) for sign in (1, -1)})
    values += [0.0, -0.0, 0.1, math.pi, math.inf, -math.inf, math.nan]
    formats = FORMATS + MORE
    found = alone(BitExplorer).evaluate(
        """({ formats, values }) => values.map((value) => formats.map((format) => {
            const row = window.explorer.bitRow(window.explorer.prepare(format), Number(value));
            return Object.values(row).map(String);
        }))""",
        {"formats": [describe(f) for f in formats], "values": [repr(v).replace("inf", "Infinity") for v in values]},
    )
    for value, rows in zip(values, found, strict=True):
        for expected, got in zip(bit_rows(value, formats), rows, strict=True):
            name, bits, *numbers, note = got
            assert (name, bits, note) == (expected.name, expected.bits, expected.note), value
            for mine, theirs in zip(astuple(expected)[2:-1], map(float, numbers), strict=True):
                assert mine == theirs or (math.isnan(mine) and math.isnan(theirs)), (value, expected, got)


TYPED = {
    "0.1": 0.1, " -1/3 ": -1 / 3, "2^-24": 2.0**-24, "3*2^-5": 3 / 32, "2**10": 1024.0, "-π": -math.pi, "1e-8": 1e-8,
    "65_504": 65504.0, ".5": 0.5, "5.": 5.0, "−2": -2.0, "inf": math.inf, "-∞": -math.inf, "1/0": math.inf, "-0": -0.0,
    "2^-1074": 5e-324, "10^3": 1000.0, "Infinity": math.inf,
}  # fmt: skip
UNREADABLE = ["", "-", "abc", "1/", "1 2", "0x10", "2^", "1e", "--1", "alert(1)", "constructor"]


def test_numbers_as_people_type_them(alone: Alone) -> None:
    found = alone(BitExplorer).evaluate(
        "(texts) => texts.map((text) => explorer.parseNumber(text)).map((x) => Object.is(x, -0) ? '-0' : `${x}`)",
        [*TYPED, *UNREADABLE],
    )
    assert [repr(float(each)) for each in found[: len(TYPED)]] == [repr(value) for value in TYPED.values()]
    assert dict.fromkeys(UNREADABLE, "undefined") == dict(zip(UNREADABLE, found[len(TYPED) :], strict=True))
