"""The bit explorer: one number in many float formats, down to the bit.

Type a number, or click a bit, and every format shows its rounding: the bits of sign, exponent and fraction, the
value that is really stored, its neighbours, and the rounding error. No table holds all numbers, so this is the one
explorer whose arithmetic runs in the browser (`floats.js`); `bit_rows` computes the same in Python, and the tests hold
the two against each other, to the bit.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import traitlets
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_kit.notebook.explorer import Explorer
from course_kit.notebook.picture import INK, MUTED, PALETTE, Picture, new_figure
from course_lib.numerics.formats import FORMATS, FloatFormat

DEFAULT_FORMATS = tuple(sorted(FORMATS[1:], key=lambda each: (-each.exponent_bits, -each.fraction_bits)))
"""All but fp64, in an order in which formats with one exponent stand together."""

PRESETS = (
    ("0.1", "0.1", "has no finite binary expansion: no format here holds it exactly"),
    ("1/3", "1/3", "the repeating fraction shows where each format cuts off"),
    ("π", "π", "fp4 calls it 3"),
    ("257", "257", "bf16 cannot count past 256 by ones"),
    ("448", "448", "the largest number of fp8 e4m3fn"),
    ("65504", "65504", "the largest number of fp16"),
    ("65520", "65520", "the smallest number that fp16 rounds to infinity"),
    ("1e-8", "1e-8", "a small gradient: gone in fp16, alive in bf16"),
    ("2⁻²⁴", "2^-24", "the smallest subnormal number of fp16"),
    ("−0", "-0", "zero keeps its sign bit"),
    ("∞", "∞", "formats without an infinity must make something else of it"),
    ("nan", "nan", "not a number: where all exponent bits are 1, a fraction that is not 0 says so"),
)
"""Interesting numbers: name on the page, text to type, reason."""


@dataclass(frozen=True)
class BitRow:
    """A number in one format: its bits, its value, its neighbours, its error."""

    name: str  # the format's name
    bits: str  # the stored pattern as a string of 0 and 1, sign first; "" for a nan in a format that has none
    stored: float  # the value that the pattern stands for
    below: float  # the next lower number of the format; nan if there is none
    above: float  # the next higher one; nan if there is none
    error: float  # |stored - number|
    relative: float  # error / |number|; 0 where the number is stored exactly
    note: str  # a special case in words ("subnormal", "rounds to zero"), "" for an ordinary number


def bit_rows(value: float, formats: Sequence[FloatFormat] = DEFAULT_FORMATS) -> list[BitRow]:
    """Rows of the explorer for `value`, one for each format, rounded to nearest even."""
    return [_bit_row(float(value), each) for each in formats]


def _bit_row(value: float, form: FloatFormat) -> BitRow:
    stored = float(form.round(value))
    below, above = map(float, form.neighbours(stored))
    storable = not (math.isnan(value) and form.specials == "finite")
    error = 0.0 if stored == value else abs(stored - value)
    return BitRow(
        name=form.name,
        bits=f"{int(form.encode(value)) % 2**form.bits:0{form.bits}b}" if storable else "",  # fp64's come signed
        stored=stored,
        below=below,
        above=above,
        error=error,
        relative=error / abs(value) if error and math.isfinite(value) else error,
        note=_in_words(value, stored, form),
    )


def _in_words(value: float, stored: float, form: FloatFormat) -> str:
    size = abs(stored)
    if math.isnan(value):
        return "has no nan" if form.specials == "finite" else "not a number"
    if math.isnan(stored):
        return "overflows to nan"
    if math.isinf(stored):
        return "overflows to infinity" if math.isfinite(value) else "infinity"
    if size == form.max:
        return "held at the largest" if abs(value) > form.max else "largest finite"
    if size == 0:
        exact = "negative zero" if math.copysign(1, stored) < 0 else "zero"
        return "rounds to zero" if value else exact
    if size < form.min_normal:
        return "smallest subnormal" if size == form.min_subnormal else "subnormal"
    return "smallest normal" if size == form.min_normal else ""


def describe(form: FloatFormat) -> dict[str, Any]:
    """A format as the data that `floats.js` computes with. Patterns are hexadecimal: JSON numbers hold 53 bits."""
    names = ("name", "exponent_bits", "fraction_bits", "bias", "specials", "overflow")
    return {name: getattr(form, name) for name in names} | {
        "max_pattern": hex(form.max_pattern),
        "nan_pattern": None if form.specials == "finite" else hex(int(form.encode(math.nan))),
    }


def _to_json(value: float, _widget: object) -> str:
    """A float as its 64 bits in hexadecimal: JSON has no infinity and no nan, and JavaScript prints other digits.

    One text for one number also matters: a number that comes back in another form is taken for a change.
    """
    return struct.pack(">d", math.nan if math.isnan(value) else value).hex()


def _from_json(text: str, _widget: object) -> float:
    return struct.unpack(">d", bytes.fromhex(text))[0]


class BitExplorer(Explorer):
    """A number in several float formats, bit by bit, to click and to type into.

    Args:
        value: the number to begin with.
        formats: the rows, from top to bottom.

    Raises:
        ValueError: there are no formats, or two of one name.
    """

    scripts = ("floats", "numerals")
    caption = "The same number in every format. Click a bit or type a number, and the others follow."
    value = traitlets.Float(0.1).tag(sync=True, to_json=_to_json, from_json=_from_json)

    def __init__(self, value: float = 0.1, formats: Sequence[FloatFormat] = DEFAULT_FORMATS) -> None:
        names = [each.name for each in formats]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"BitExplorer needs at least one format, each with a name of its own; given {names}")
        self.formats = tuple(formats)
        super().__init__()
        self.value = value

    @property
    def rows(self) -> list[BitRow]:
        """Rows of the current number."""
        return bit_rows(self.value, self.formats)

    def _table(self) -> dict[str, Any]:
        return {"formats": [describe(each) for each in self.formats], "presets": PRESETS}

    def _picture(self, *, caption: str, alt: str) -> Picture:
        return Picture(draw(self.value, self.formats), caption=caption, alt=alt)

    def _told(self) -> str:
        held = "; ".join(f"{row.name} holds {_short(row.stored)}" for row in self.rows)
        return f"Bits of {_short(self.value)} in {len(self.formats)} float formats. {held}."


def _short(value: float) -> str:
    """A number in at most nine digits, which tell any two fp32 numbers apart."""
    return f"{value:.9g}"


def draw(value: float, formats: Sequence[FloatFormat] = DEFAULT_FORMATS) -> Figure:
    """The picture of the explorer for a static page: bits by field, aligned where exponent and fraction meet."""
    rows = bit_rows(value, formats)
    left = 1 + max(each.exponent_bits for each in formats)
    right = max(each.fraction_bits for each in formats)
    figure, (axes,) = new_figure(height=0.55 + 0.52 * len(rows))
    axes.set_axis_off()
    axes.set(xlim=(-left - 6.2, max(right, 26) + 0.3), ylim=(1.8 * len(rows) - 0.2, -1.3))
    axes.text(-left - 6.2, -0.85, f"{_short(value)} in {len(rows)} formats", weight="bold", color=INK, size=11)
    for line, (row, form) in enumerate(zip(rows, formats, strict=True)):
        _draw_row(axes, row, form, left, 1.8 * line)
    return figure


def _draw_row(axes: Axes, row: BitRow, form: FloatFormat, left: int, y: float) -> None:
    """One format: its name, its bits, and a line of words below them."""
    axes.text(-left - 6.2, y + 0.5, row.name, va="center", color=INK, family="monospace", size=9.5)
    for place, bit in enumerate(row.bits):
        field = "sign" if place == 0 else "exponent" if place <= form.exponent_bits else "fraction"
        x = place - 1 - form.exponent_bits + 0.15 * ((field == "fraction") - (field == "sign"))
        color = PALETTE[field]
        on = bit == "1"
        axes.add_patch(Rectangle((x + 0.05, y), 0.9, 0.95, facecolor=color if on else "white", edgecolor=color, lw=0.9))
        axes.text(x + 0.5, y + 0.52, bit, ha="center", va="center", size=7.5, color="white" if on else MUTED)
    words = "exact" if row.error == 0 else f"off by {row.error:.2g}, relative {row.relative:.2g}"
    words = f"{_short(row.stored)}   {words}" + (f"   {row.note}" if row.note else "")
    axes.text(-left, y + 1.32, words, va="center", color=MUTED, size=7.5)
