"""Pictures of float formats: where their numbers lie, how far they reach, how much each of them loses.

Lesson 01 opens this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.figures.style import INK, MUTED, PALETTE, STYLES, new_figure, present, series_color
from course_lib.numerics.formats import FORMATS, FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E4M3FN, FP8_E5M2, FloatFormat


def number_lines(
    formats: Sequence[FloatFormat] = (FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E5M2, FP8_E4M3FN), up_to: float = 8.0
) -> None:
    """Show every number from 0 to `up_to` of some narrow formats, one line each."""
    counts = ", ".join(f"{fmt} has {len(values_up_to(fmt, up_to))}" for fmt in formats)
    present(
        draw_number_lines(formats, up_to),
        caption="Each tick is a number. Ticks thin out at every power of two (grey lines): the distance doubles. "
        "Left of the orange mark, among the subnormals, it stays the same.",
        alt=f"Number lines from 0 to {up_to:g}. Numbers in that interval: {counts}. On each line the ticks get twice "
        "as far apart at each power of two.",
    )


def values_up_to(fmt: FloatFormat, up_to: float) -> list[float]:
    """The numbers of a format (16 bits at most) in [0, up_to], in order."""
    values = fmt.decode(torch.arange(fmt.max_pattern + 1))
    return values[values <= up_to].tolist()


def draw_number_lines(formats: Sequence[FloatFormat], up_to: float) -> Figure:
    """The figure of `number_lines`, not yet shown."""
    figure, (axes,) = new_figure(height=0.8 + 0.45 * len(formats))
    for row, fmt in enumerate(formats):
        y = len(formats) - row
        axes.vlines(values_up_to(fmt, up_to), y - 0.28, y + 0.28, color=PALETTE["fraction"], linewidth=1.1)
        axes.plot([fmt.min_normal] * 2, [y - 0.36, y + 0.36], color=PALETTE["optimizer"], linewidth=3, zorder=1)
    axes.set_yticks(range(len(formats), 0, -1), [fmt.name for fmt in formats], family="monospace")
    powers = [2.0**k for k in range(-1, 10) if 2.0**k <= up_to]
    axes.set_xticks(powers, [f"{power:g}" for power in powers])
    axes.set(xlim=(-0.1, up_to + 0.1), ylim=(0.4, len(formats) + 0.6))
    axes.grid(False, axis="y")
    return figure


def range_and_precision(formats: Sequence[FloatFormat] = FORMATS[1:]) -> None:
    """Show how far each format reaches, and how finely it divides what it reaches."""
    spans = "; ".join(f"{fmt}: {fmt.min_subnormal:.2g} to {fmt.max:.3g}, eps {fmt.eps:.2g}" for fmt in formats)
    present(
        draw_range_and_precision(formats),
        caption="Exponent bits buy width: bf16 reaches as far as fp32. Fraction bits buy precision (eps, on the "
        "right): fp16 has eight times bf16's. The pale end of a bar is where the subnormals are, and precision fades.",
        alt=f"Bars on a logarithmic axis from the smallest to the largest positive number of each format. {spans}.",
    )


def draw_range_and_precision(formats: Sequence[FloatFormat]) -> Figure:
    """The figure of `range_and_precision`, not yet shown."""
    figure, (axes,) = new_figure(height=0.9 + 0.34 * len(formats))
    for row, fmt in enumerate(formats):
        low, normal, high = (np.log10([fmt.min_subnormal, fmt.min_normal, fmt.max])).tolist()
        y = len(formats) - row
        axes.barh(y, normal - low, left=low, height=0.55, color=PALETTE["exponent"], alpha=0.3)
        axes.barh(y, high - normal, left=normal, height=0.55, color=PALETTE["exponent"])
        axes.text(42, y, f"eps = 2$^{{-{fmt.fraction_bits}}}$", va="center", color=PALETTE["fraction"], size=10)
    axes.set_yticks(range(len(formats), 0, -1), [fmt.name for fmt in formats], family="monospace")
    axes.set_xticks(range(-40, 41, 10), [f"10$^{{{k}}}$" for k in range(-40, 41, 10)])
    axes.set(xlim=(-47, 56), xlabel="positive numbers, from the smallest to the largest")
    axes.grid(False, axis="y")
    return figure


def relative_error(formats: Sequence[FloatFormat]) -> None:
    """Show the worst relative rounding error at each magnitude."""
    floors = "; ".join(f"{fmt}: {fmt.eps / 2:.2g} between {fmt.min_normal:.2g} and {fmt.max:.2g}" for fmt in formats)
    present(
        draw_relative_error(formats),
        caption="Lower is better. A line is flat where a format has its full precision; it climbs to the left where "
        "subnormals run out of bits, and ends at the right where the format overflows.",
        alt=f"Worst relative rounding error over the size of the number, both logarithmic. Flat parts: {floors}. To "
        "the left of its flat part each line doubles with every halving of the number.",
    )


def worst_relative_error(fmt: FloatFormat, exponents: Sequence[int]) -> list[float]:
    """Half a spacing over x at x = 2^k, at most 1 (rounded to zero), nan beyond the format's largest number."""
    x = torch.tensor([2.0**k for k in exponents], dtype=torch.float64)
    error = (fmt.spacing(x) / 2 / x).clamp(max=1.0)
    return torch.where(x > fmt.max, torch.nan, error).tolist()


def draw_relative_error(formats: Sequence[FloatFormat]) -> Figure:
    """The figure of `relative_error`, not yet shown."""
    figure, (axes,) = new_figure(height=3.4)
    exponents = range(-32, 33)
    x = [2.0**k for k in exponents]
    for index, fmt in enumerate(formats):
        color = series_color(index)
        errors = worst_relative_error(fmt, exponents)
        axes.plot(x, errors, color=color, linewidth=2)
        last = max(k for k, error in enumerate(errors) if error == error)
        place, ends_inside = ((x[last], errors[last]), last < len(x) - 1)
        if ends_inside:
            axes.plot(*place, marker="o", color=color, markersize=5)
        offset, side = ((8, 0), "left") if ends_inside else ((-4, 8), "right")
        axes.annotate(fmt.name, place, offset, textcoords="offset points", color=color, va="center", ha=side)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="size of the number", ylabel="worst relative error", xlim=(x[0], x[-1]))
    return figure


def running_values(curves: Mapping[str, Sequence[float]], *, caption: str, xlabel: str = "additions so far") -> None:
    """Show how a value grows under many small additions, one line for each way to add."""
    ends = "; ".join(f"{name} ends at {values[-1]:.4g}" for name, values in curves.items())
    present(
        draw_running_values(curves, xlabel),
        caption=caption,
        alt=f"Lines over {xlabel}, starting together. {ends}.",
    )


def draw_running_values(curves: Mapping[str, Sequence[float]], xlabel: str) -> Figure:
    """The figure of `running_values`, not yet shown. Names stand at the right end of their line."""
    figure, (axes,) = new_figure(height=3.0)
    longest = max(len(values) for values in curves.values())
    for index, values in enumerate(curves.values()):
        axes.plot(values, color=series_color(index), linewidth=2, linestyle=STYLES[index % 4])
    axes.set(xlim=(0, 1.3 * longest), xlabel=xlabel, ylabel="value")
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= longest])
    _name_ends(axes, curves, 1.01 * longest)
    return figure


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


def bits_against_error(points: Mapping[str, tuple[float, float]], *, caption: str) -> None:
    """Show what each format costs (bits a number) and gives (signal over noise, in decibels)."""
    told = "; ".join(f"{name}: {bits:.3g} bits, {decibels:.1f} dB" for name, (bits, decibels) in points.items())
    present(draw_bits_against_error(points), caption=caption, alt=f"Points of bits against decibels. {told}.")


def draw_bits_against_error(points: Mapping[str, tuple[float, float]]) -> Figure:
    """The figure of `bits_against_error`, not yet shown. Integers are squares, floats are circles."""
    figure, (axes,) = new_figure(height=3.4)
    widest = max(bits for bits, _ in points.values())
    axes.plot([0, 1.08 * widest], [0, 6.02 * 1.08 * widest], color=MUTED, linewidth=1, linestyle=":")
    axes.annotate("6 dB for each bit", (0.93 * widest, 5.6 * widest), (-8, 2), textcoords="offset points", ha="right",
                  color=MUTED)  # fmt: skip
    for name, (bits, decibels) in points.items():
        whole = not name.startswith("fp")
        color = PALETTE["sign"] if whole else PALETTE["exponent"]
        axes.plot(bits, decibels, marker="s" if whole else "o", color=color, markersize=7)
        axes.annotate(name, (bits, decibels), (9, 0), textcoords="offset points", va="center", color=color, size=9.5)
    axes.set(xlim=(0, 1.22 * widest), ylim=(0, None), xlabel="bits stored for each number",
             ylabel="signal to noise (dB)")  # fmt: skip
    return figure


def recipes(losses: Mapping[str, Sequence[float]], moved: Mapping[str, Sequence[float]], *, caption: str) -> None:
    """Show training runs: their loss, and the share of weights that each step really changes.

    Args:
        losses: name → loss of each step, in nats per token.
        moved: name → share of weights, 0 to 1, that differ after each step.
        caption: what the reader should see.
    """
    told = "; ".join(
        f"{name}: loss {np.mean(losses[name][-20:]):.2f}, {np.mean(moved[name][-20:]):.0%} of the weights move"
        for name in losses
    )
    present(draw_recipes(losses, moved), caption=caption, alt=f"Two panels. Over the last 20 steps, {told}.")


def draw_recipes(losses: Mapping[str, Sequence[float]], moved: Mapping[str, Sequence[float]]) -> Figure:
    """The figure of `recipes`, not yet shown."""
    figure, (left, right) = new_figure(columns=2, height=3.4)
    for index, name in enumerate(losses):
        style = {"color": series_color(index), "linewidth": 1.8, "linestyle": STYLES[index % 4]}
        left.plot(_smooth(losses[name]), **style, label=name)
        right.plot(_smooth([100 * share for share in moved[name]]), **style)
    left.set(xlabel="step", ylabel="loss (nats per token)")
    right.set(xlabel="step", ylabel="weights that a step moves (%)", ylim=(0, 105))
    left.legend(frameon=False, labelcolor=INK)
    return figure


def _smooth(values: Sequence[float], window: int = 10) -> list[float]:
    """The mean of each value and up to nine before it."""
    return [float(np.mean(values[max(0, i - window + 1) : i + 1])) for i in range(len(values))]
