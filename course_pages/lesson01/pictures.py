"""Pictures of float formats: their numbers on a line, their reach and precision, their rounding errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes

from course_kit.notebook.picture import MUTED, PALETTE, Picture, line_look, new_figure, note, series_color
from course_lib.numerics.formats import FORMATS, FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E4M3FN, FP8_E5M2, FloatFormat

NARROW = (FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E5M2, FP8_E4M3FN)
"""Formats of which every number can be drawn."""


def number_lines(
    formats: Sequence[FloatFormat] = NARROW, low: float = 2.0**-10, high: float = 8.0, *, caption: str
) -> Picture:
    """Every number from `low` to `high` of some narrow formats, one line each, on a logarithmic axis."""
    figure, (axes,) = new_figure(height=0.9 + 0.45 * len(formats))
    counts = []
    for y, fmt in zip(range(len(formats), 0, -1), formats):
        values = [value for value in values_up_to(fmt, high) if value >= low]
        axes.vlines(values, y - 0.28, y + 0.28, color=PALETTE["fraction"], linewidth=1.1)
        if fmt.min_normal >= low:
            axes.plot([fmt.min_normal] * 2, [y - 0.36, y + 0.36], color=PALETTE["optimizer"], linewidth=3, zorder=1)
        counts.append(f"{fmt} has {len(values)}")
    _name_rows(axes, formats)
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    powers = range(round(math.log2(low)), round(math.log2(high)) + 1)
    axes.set_xticks([2.0**k for k in powers], [f"2$^{{{k}}}$" if k < 0 else f"{2**k}" for k in powers])
    axes.set(xlim=(low / 1.1, high * 1.1), ylim=(0.4, len(formats) + 0.6), xlabel="positive numbers")
    alt = (
        f"Number lines from {low:g} to {high:g}, logarithmic. Numbers in that interval: {', '.join(counts)}. Above its "
        "mark each format has equally many ticks between any two powers of two; below it, half as many with each "
        "step to the left."
    )
    return Picture(figure, caption=caption, alt=alt)


def values_up_to(fmt: FloatFormat, up_to: float) -> list[float]:
    """The numbers of a format (16 bits at most) in [0, up_to], in order."""
    values = fmt.decode(torch.arange(fmt.max_pattern + 1))
    return values[values <= up_to].tolist()


def _name_rows(axes: Axes, formats: Sequence[FloatFormat]) -> None:
    axes.set_yticks(range(len(formats), 0, -1), [fmt.name for fmt in formats], family="monospace")
    axes.grid(False, axis="y")


def range_and_precision(formats: Sequence[FloatFormat] = FORMATS[1:], *, caption: str) -> Picture:
    """Reach and precision of each format, as bars from its smallest to its largest number."""
    figure, (axes,) = new_figure(height=0.9 + 0.34 * len(formats))
    for y, fmt in zip(range(len(formats), 0, -1), formats):
        low, normal, high = (np.log10([fmt.min_subnormal, fmt.min_normal, fmt.max])).tolist()
        axes.barh(y, normal - low, left=low, height=0.55, color=PALETTE["exponent"], alpha=0.3)
        axes.barh(y, high - normal, left=normal, height=0.55, color=PALETTE["exponent"])
        axes.text(42, y, f"eps = 2$^{{-{fmt.fraction_bits}}}$", va="center", color=PALETTE["fraction"], size=10)
    _name_rows(axes, formats)
    axes.set_xticks(range(-40, 41, 10), [f"10$^{{{k}}}$" for k in range(-40, 41, 10)])
    axes.set(xlim=(-47, 56), xlabel="positive numbers, from the smallest to the largest")
    spans = "; ".join(f"{fmt}: {fmt.min_subnormal:.2g} to {fmt.max:.3g}, eps {fmt.eps:.2g}" for fmt in formats)
    alt = f"Bars on a logarithmic axis from the smallest to the largest positive number of each format. {spans}."
    return Picture(figure, caption=caption, alt=alt)


def relative_error(formats: Sequence[FloatFormat], *, caption: str) -> Picture:
    """The worst relative rounding error at each magnitude."""
    figure, (axes,) = new_figure(height=3.4)
    exponents = range(-32, 33)
    x = [2.0**k for k in exponents]
    for index, fmt in enumerate(formats):
        color = series_color(index)
        errors = worst_relative_error(fmt, exponents)
        axes.plot(x, errors, color=color, linewidth=2)
        last = max(k for k, error in enumerate(errors) if error == error)
        end = (x[last], errors[last])
        if last < len(x) - 1:
            axes.plot(*end, marker="o", color=color, markersize=5)
            note(axes, fmt.name, end, (8, 0), color=color, size=10, va="center", ha="left")
        else:
            note(axes, fmt.name, end, (-4, 8), color=color, size=10, va="center", ha="right")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="size of the number", ylabel="worst relative error", xlim=(x[0], x[-1]))
    floors = "; ".join(f"{fmt}: {fmt.eps / 2:.2g} between {fmt.min_normal:.2g} and {fmt.max:.2g}" for fmt in formats)
    alt = (
        f"Worst relative rounding error over the size of the number, both logarithmic. Flat parts: {floors}. To the "
        "left of its flat part each line doubles with every halving of the number."
    )
    return Picture(figure, caption=caption, alt=alt)


def worst_relative_error(fmt: FloatFormat, exponents: Sequence[int]) -> list[float]:
    """Half a spacing over x at x = 2^k, at most 1 (rounded to zero), nan beyond the format's largest number."""
    x = torch.tensor([2.0**k for k in exponents], dtype=torch.float64)
    error = (fmt.spacing(x) / 2 / x).clamp(max=1.0)
    return torch.where(x > fmt.max, torch.nan, error).tolist()


def running_values(
    curves: Mapping[str, Sequence[float]], *, caption: str, xlabel: str = "additions so far", first: int | None = None
) -> Picture:
    """A value under many small additions, one line for each way to add, with its name at its right end.

    Args:
        curves: name → value after each addition.
        xlabel: name of the steps.
        first: number of first steps that a panel of their own draws once more, up to the last value of the curve that
            ends lowest, with a dotted line at each power of two.
    """
    figure, (axes, *zoom) = new_figure(columns=2 if first else 1, height=3.0)
    longest = max(len(values) for values in curves.values())
    for index, values in enumerate(curves.values()):
        for panel in (axes, *zoom):
            panel.plot(values, linewidth=2, **line_look(index))
    axes.set(xlim=(0, (1.5 if first else 1.3) * longest), xlabel=xlabel, ylabel="value")
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= longest])
    _name_ends(axes, curves, 1.01 * longest)
    if first:
        _zoom(zoom[0], 1.15 * min(values[-1] for values in curves.values()), first, xlabel)
    ends = "; ".join(f"{name} ends at {values[-1]:.4g}" for name, values in curves.items())
    return Picture(figure, caption=caption, alt=f"Lines over {xlabel}, starting together. {ends}.")


def _zoom(axes: Axes, top: float, first: int, xlabel: str) -> None:
    """The panel of the beginning, with powers of two marked."""
    axes.set(xlim=(0, first), ylim=(0, top), xlabel=f"{xlabel}, the first {first:,}")
    highest = math.floor(math.log2(top))
    powers = range(highest - 2, highest + 1)
    axes.grid(False)
    for power in powers:
        axes.axhline(2.0**power, color=MUTED, linewidth=1, linestyle=":", zorder=0)
    axes.set_yticks([0, *(2.0**power for power in powers)], ["0", *(f"2$^{{{power}}}$" for power in powers)])


def _name_ends(axes: Axes, curves: Mapping[str, Sequence[float]], x: float) -> None:
    """Write each curve's name beside its last value, moved apart where two would overlap."""
    bottom, top = axes.get_ylim()
    gap = 0.085 * (top - bottom)
    ends = sorted((values[-1], name, index) for index, (name, values) in enumerate(curves.items()))
    y = bottom - gap
    for end, name, index in ends:
        y = max(end, y + gap)
        axes.text(x, y, name, color=series_color(index), va="center", size=10)
    axes.set_ylim(bottom, max(top, y + gap / 2))


def bits_against_error(points: Mapping[str, tuple[float, float]], *, caption: str) -> Picture:
    """Cost of each format (bits a number) and gain (signal over noise, in decibels): integers as squares, floats as
    circles."""
    figure, (axes,) = new_figure(height=3.4)
    widest = max(bits for bits, _ in points.values())
    axes.plot([0, 1.08 * widest], [0, 6.02 * 1.08 * widest], color=MUTED, linewidth=1, linestyle=":")
    note(axes, "6 dB for each bit", (0.93 * widest, 5.6 * widest), (-8, 2), ha="right", color=MUTED, size=10)
    for name, (bits, decibels) in points.items():
        whole = not name.startswith("fp")
        color = PALETTE["sign"] if whole else PALETTE["exponent"]
        axes.plot(bits, decibels, marker="s" if whole else "o", color=color, markersize=7)
        note(axes, name, (bits, decibels), (9, 0), va="center", color=color)
    axes.set(xlim=(0, 1.22 * widest), ylim=(0, None), xlabel="bits stored for each number",
             ylabel="signal to noise (dB)")  # fmt: skip
    told = "; ".join(f"{name}: {bits:.3g} bits, {decibels:.1f} dB" for name, (bits, decibels) in points.items())
    return Picture(figure, caption=caption, alt=f"Points of bits against decibels. {told}.")
