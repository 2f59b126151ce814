"""Pictures of mixed precision: gradients before a format's window, the hunt of the loss scale, GPUs' peaks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple

from matplotlib.axes import Axes

from course_kit.notebook.picture import INK, MUTED, Picture, legend, new_figure, series_color
from course_lib.model.hardware import GPU
from course_lib.numerics import FloatFormat
from course_lib.train.gradients import GradientSizes

FATES = {"becomes 0": "#D55E00", "subnormal": "#E69F00", "normal": "#0072B2", "inf": "#CC79A7"}
"""Fates of a number under a cast, in the order of `CastCounts`, and their colours."""

AXIS = range(-64, 49, 16)
"""Ticks below the histograms: powers of two."""


def borders(fmt: FloatFormat) -> list[int]:
    """The powers of two from which on numbers are no longer flushed to 0, are normal, are too large."""
    # Half of the smallest number is where rounding to 0 begins.
    return [1 - fmt.bias - fmt.fraction_bits - 1, 1 - fmt.bias, fmt.max_exponent + 1]


def gradient_histograms(
    rows: Mapping[str, tuple[GradientSizes, float]], fmt: FloatFormat, *, caption: str, alt: str = ""
) -> Picture:
    """Sizes of numbers before the window of a format, one row for each name → (numbers, scale).

    A bar holds one power of two; numbers that rounding carries over a border are drawn where they were. `alt` is the
    figure in words; by default the shares of each row.
    """
    figure, panels = new_figure(rows=len(rows), height=0.9 + 1.55 * len(rows))
    words = []
    for axes, (name, (sizes, scale)) in zip(panels, rows.items(), strict=True):
        binades = sizes.binades()
        places = [power + round(math.log2(scale)) for power in binades]
        colors = [list(FATES.values())[sum(place >= border for border in borders(fmt))] for place in places]
        axes.bar(places, list(binades.values()), width=0.92, align="edge", color=colors)
        axes.set(xlim=(AXIS[0], AXIS[-1]), yscale="log", ylabel="numbers", ylim=(0.7, 20 * max(binades.values())))
        _window(axes, fmt)
        axes.annotate(re.sub(r"2\^(-?\d+)", r"$2^{\1}$", name), (0.01, 0.84), xycoords="axes fraction", color=INK)
        counts = sizes.cast(fmt, scale)
        shares = zip(FATES, astuple(counts), strict=True)
        words.append(f"{name}: " + ", ".join(f"{100 * count / counts.total:.1f} % {fate}" for fate, count in shares))
    for axes in panels:
        axes.set_xticks(AXIS, [f"$2^{{{power}}}$" for power in AXIS] if axes is panels[-1] else [""] * len(AXIS))
        axes.tick_params(which="minor", left=False)
    panels[-1].set_xlabel("size of the number")
    legend(figure, "upper center", 4, FATES, fontsize=9)
    told = f"Histograms by powers of two, coloured by what a cast to {fmt} does. {'; '.join(words)}."
    return Picture(figure, caption=caption, alt=alt or told)


def _window(axes: Axes, fmt: FloatFormat) -> None:
    """A pale band where the format has numbers, paler where they are subnormal."""
    low, normal, high = (min(max(border, AXIS[0]), AXIS[-1]) for border in borders(fmt))
    axes.axvspan(low, high, color=MUTED, alpha=0.09, linewidth=0)
    axes.axvspan(normal, high, color=MUTED, alpha=0.09, linewidth=0)
    middle = (normal + high) / 2
    axes.annotate(
        f"{fmt}'s normal numbers", (middle, 0.84), xycoords=("data", "axes fraction"), ha="center", color=MUTED
    )
    axes.grid(False, axis="x")


def scale_hunt(scales: Sequence[float], skipped: Sequence[int], others: Sequence[float], *, caption: str) -> Picture:
    """A dynamic loss scale over the steps, with its skipped steps, and another scaler's."""
    figure, (axes,) = new_figure(height=2.8)
    steps = range(len(scales))
    axes.step(steps, others, where="post", color=series_color(4), linewidth=6, alpha=0.45, label="torch.amp.GradScaler")
    axes.step(steps, scales, where="post", color=series_color(0), linewidth=1.6, label="ours")
    at = [scales[step] for step in skipped]
    axes.plot(skipped, at, "x", color=series_color(1), markersize=8, markeredgewidth=2, label="skipped step")
    axes.set_yscale("log", base=2)
    axes.set(xlabel="step", ylabel="loss scale", xlim=(-1, len(scales) - 1))
    axes.legend(frameon=False, ncols=3, loc="lower right", fontsize=9)
    agreement = "the same" if list(scales) == list(others) else "another"
    alt = (
        f"The scale, as a power of two, over {len(scales)} steps: from 2^{math.log2(scales[0]):g} to between "
        f"2^{math.log2(min(scales)):g} and 2^{math.log2(max(scales)):g}. {len(skipped)} steps are skipped: "
        f"{', '.join(map(str, skipped))}. The other scaler's line is {agreement}."
    )
    return Picture(figure, caption=caption, alt=alt)


def gpu_peaks(gpus: Sequence[GPU], formats: Sequence[str], *, caption: str) -> Picture:
    """The dense peaks of some GPUs by format, and those that data sheets print with 2:4 sparsity."""
    figure, panels = new_figure(columns=len(gpus), height=2.9)
    told = []
    for axes, gpu in zip(panels, gpus, strict=True):
        peaks = {name: gpu.peak(name) / 1e12 for name in formats if name in gpu.dense_flops_per_s}
        names = list(reversed(peaks))
        for row, name in enumerate(names):
            _peak(axes, row, peaks[name], sparse=gpu.has_sparsity and name not in ("fp64", "fp32"))
        axes.set_yticks(range(len(names)), names, family="monospace")
        axes.set(xlim=(0, 3.4 * max(peaks.values())), title=gpu.name, xlabel="TFLOP/s")
        axes.title.set_fontsize(10)
        axes.grid(False, axis="y")
        told.append(f"{gpu.name}: " + ", ".join(f"{name} {dense:g}" for name, dense in peaks.items()))
    alt = f"Dense peaks in TFLOP/s. {'; '.join(told)}. Sparse figures are twice those, where they exist."
    return Picture(figure, caption=caption, alt=alt)


def _peak(axes: Axes, row: int, dense: float, sparse: bool) -> None:
    """One bar in TFLOP/s, with a dotted one of twice its length where there is a sparse peak."""
    if sparse:
        axes.barh(row, 2 * dense, height=0.62, facecolor="none", edgecolor=MUTED, linestyle=":", linewidth=1.3)
    axes.barh(row, dense, height=0.62, color=series_color(0))
    words = f" {dense:.0f} (sparse {2 * dense:.0f})" if sparse else f" {dense:.0f}"
    axes.text(2 * dense if sparse else dense, row, words, va="center", color=INK, size=9)
