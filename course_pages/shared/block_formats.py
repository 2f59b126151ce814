"""Pictures of block formats and long sums: a block on its grid, bits in their bytes, errors by size and by length.

Everything drawn is handed in; nothing is quantised or summed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.patches import Rectangle

from course_kit.notebook.picture import (
    GRID,
    INK,
    MUTED,
    PALETTE,
    Picture,
    legend,
    line_look,
    new_figure,
    note,
    series_color,
)


def block_on_grid(
    numbers: Sequence[float], stored: Sequence[float], levels: Sequence[float], *, caption: str
) -> Picture:
    """The numbers of a block, their stored values, and the grid of all values that could be stored."""
    figure, (axes,) = new_figure(height=3.6)
    axes.grid(False)
    axes.hlines(levels, -0.8, len(numbers) - 0.2, color=GRID, linewidth=1)
    places = range(len(numbers))
    axes.vlines(places, numbers, stored, color=PALETTE["sign"], linewidth=2.4)
    axes.plot(places, numbers, "o", color=INK, markersize=7, markerfacecolor="none", label="number")
    axes.plot(places, stored, "o", color=PALETTE["exponent"], markersize=4, label="stored")
    axes.set(xlabel="place in the block", ylabel="value", xlim=(-0.8, len(numbers) - 0.2))
    legend(figure, "upper center", 2, fontsize=9)
    worst = max(abs(a - b) for a, b in zip(numbers, stored, strict=True))
    alt = (
        f"{len(numbers)} numbers from {min(numbers):.3g} to {max(numbers):.3g}, each as a ring, and as a dot on one of "
        f"{len(levels)} grid lines what is stored of it. Dots on the line of 0: {sum(value == 0 for value in stored)}. "
        f"The largest distance between a ring and its dot is {worst:.2g}."
    )
    return Picture(figure, caption=caption, alt=alt)


def bit_layout(bits: int, elements: int, *, caption: str) -> Picture:
    """Bits of elements in their bytes, when elements of some bits follow each other through the bytes."""
    cells = place_bits(bits, elements)
    rows = 1 + max(byte for byte, *_ in cells)
    figure, (axes,) = new_figure(height=0.9 + 0.5 * rows)
    words = [f"byte {byte}:" for byte in range(rows)]
    for byte, place, element, bit in sorted(cells, reverse=True):
        corner = (7 - place, rows - 1 - byte)
        axes.add_patch(Rectangle(corner, 0.94, 0.86, color=series_color(element), alpha=0.3, linewidth=0))
        axes.text(corner[0] + 0.47, corner[1] + 0.43, f"{element}.{bit}", ha="center", va="center", color=INK, size=10)
        words[byte] += f" {element}.{bit}"
    axes.set(xlim=(-0.05, 8), ylim=(-0.1, rows), xlabel="bit of the byte")
    axes.set_xticks([7 - bit + 0.47 for bit in range(8)], [str(bit) for bit in range(8)])
    axes.set_yticks([rows - 1 - byte + 0.43 for byte in range(rows)], [f"byte {byte}" for byte in range(rows)])
    axes.grid(False)
    alt = f"Bits as element.bit, from bit 7 of each byte on the left to bit 0 on the right. {'; '.join(words)}."
    return Picture(figure, caption=caption, alt=alt)


def place_bits(bits: int, elements: int) -> list[tuple[int, int, int, int]]:
    """(byte, bit in the byte, element, bit in the element) for every bit, lowest first."""
    stream = [(element, bit) for element in range(elements) for bit in range(bits)]
    return [(number // 8, number % 8, element, bit) for number, (element, bit) in enumerate(stream)]


def error_against_bits(
    blocks: Mapping[str, tuple[float, float]], others: Mapping[str, tuple[float, float]], *, caption: str
) -> Picture:
    """Bits stored for each number against signal to noise, for block formats and for others beside them.

    Args:
        blocks: name → (bits, decibels), drawn as squares, with the names on their right.
        others: the same, drawn as rings, with the names on their left.
    """
    figure, (axes,) = new_figure(height=3.4)
    for points, marker, side, color in ((blocks, "s", "left", PALETTE["sign"]), (others, "o", "right", INK)):
        for name, place in points.items():
            face = color if side == "left" else "none"
            axes.plot(*place, marker, color=color, markersize=8, markerfacecolor=face)
            note(axes, name, place, (9, 0) if side == "left" else (-9, 0), ha=side, va="center", color=color)
    everything = {**blocks, **others}
    bits, decibels = zip(*everything.values(), strict=True)
    axes.set(xlim=(min(bits) - 2, max(bits) + 2), ylim=(0, 1.15 * max(decibels)))
    axes.set(xlabel="bits stored for each number, scale included", ylabel="signal to noise (dB)")
    told = "; ".join(f"{name}: {bits:.3g} bits, {decibels:.1f} dB" for name, (bits, decibels) in everything.items())
    alt = f"Points of bits against decibels, {len(blocks)} block formats and {len(others)} others. {told}."
    return Picture(figure, caption=caption, alt=alt)


def errors_by_largest(largest: Sequence[float], errors: Mapping[str, Sequence[float]], *, caption: str) -> Picture:
    """The median error of blocks over the size of their largest number, a line for each way to choose a scale.

    Args:
        largest: for each block, its largest number in units of the scale.
        errors: name → for each block, its rms error over its largest number.
    """
    figure, (axes,) = new_figure(height=3.2)
    ends = []
    for index, (name, values) in enumerate(errors.items()):
        middles, medians = medians_by_size(largest, values)
        percent = [100 * median for median in medians]
        look = {"linewidth": 2, **line_look(index)}
        if index == len(errors) - 1:  # a pale band, because it lies on the others
            look |= {"linewidth": 7, "linestyle": "-", "alpha": 0.4}
        axes.plot(middles, percent, label=name, **look)
        ends.append(f"{name}: {percent[0]:.1f} % at the left end, {percent[-1]:.1f} % at the right end")
    axes.set(xlabel="largest number of the block, in units of the scale", ylabel="rms error / largest (%)")
    axes.set_ylim(bottom=0)
    legend(figure, "upper center", 3, fontsize=9)
    alt = f"Lines of the error over the largest number, from {min(largest):.2g} to {max(largest):.2g}. "
    return Picture(figure, caption=caption, alt=alt + "; ".join(ends) + ".")


def medians_by_size(sizes: Sequence[float], values: Sequence[float], bins: int = 24) -> tuple[list[float], list[float]]:
    """The middles of equal stretches of the sizes, and the median of the values in each (empty ones left out)."""
    edges = np.linspace(min(sizes), max(sizes), bins + 1)
    number = np.clip(np.searchsorted(edges, sizes, side="right") - 1, 0, bins - 1)
    filled = [index for index in range(bins) if (number == index).any()]
    middles = [float(edges[index] + edges[index + 1]) / 2 for index in filled]
    return middles, [float(np.median(np.asarray(values)[number == index])) for index in filled]


def error_by_length(
    lengths: Sequence[int], errors: Mapping[str, Sequence[float]], bound: Sequence[float], *, caption: str
) -> Picture:
    """Relative error of a sum over its length, by the way to sum (an error of 0 is left out), below a bound."""
    figure, (axes,) = new_figure(height=3.4)
    axes.plot(lengths, bound, color=MUTED, linestyle=":", linewidth=1.6, label="bound")
    for index, (name, values) in enumerate(errors.items()):
        seen = [value if value > 0 else np.nan for value in values]
        axes.plot(lengths, seen, linewidth=2, label=name, marker="o", markersize=4, **line_look(index))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="numbers in the sum", ylabel="relative error")
    legend(figure, "upper center", 4, fontsize=9)
    ends = "; ".join(f"{name} {values[-1]:.1e}" for name, values in errors.items())
    alt = (
        f"Relative errors over lengths from {lengths[0]:,} to {lengths[-1]:,}, both logarithmic. At the end: {ends}; "
        f"the bound {bound[-1]:.1e}."
    )
    return Picture(figure, caption=caption, alt=alt)
