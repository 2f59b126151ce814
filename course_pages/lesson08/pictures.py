"""Pictures of split layers and sequences: the parts of a product and of a block on each rank, work in a ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course_kit.notebook.picture import GRID, INK, MUTED, Picture, new_figure, series_color
from course_kit.units import Bytes

COPY = "#B8BFC6"
"""Colour of a tensor of which every rank holds a copy."""

Lies = Literal["whole", "columns", "rows", "terms"]
"""A tensor on its ranks: a copy on each, cut along its columns or rows, or a term of a sum on each."""


class Stop(NamedTuple):
    """One tensor of a product that is split, and the sign or message behind it."""

    name: str  # its letter
    rows: int  # of the whole
    columns: int  # of the whole
    lies: Lies  # its layout on the ranks
    behind: str = ""  # "×", "=", "GELU, ×", or the name of a collective
    sent: Bytes = Bytes(0)  # bytes that each rank sends in that collective


def split_product(stops: Sequence[Stop], ranks: int, *, caption: str, alt: str) -> Picture:
    """Every tensor of a split product in a row; colours are ranks, grey is a copy on each, a stack is an open sum."""
    figure, (axes,) = new_figure(height=1.9)
    axes.set_axis_off()
    axes.grid(False)
    sides = [(2.2 * each.columns**0.5, 2.2 * each.rows**0.5) for each in stops]
    gaps = [56 if each.sent else 42 if "," in each.behind else 12 for each in stops]
    lefts = [0.0, *accumulate(width + gap for (width, _), gap in zip(sides, gaps))]
    axes.set(xlim=(-3, lefts[-1]), ylim=(-36, 36), aspect="equal")
    for stop, (width, height), gap, left in zip(stops, sides, gaps, lefts):
        _tensor(axes, (left, -height / 2, width, height), stop.lies, ranks)
        axes.text(left + width / 2, height / 2 + 5, stop.name, ha="center", va="bottom", size=10, color=INK)
        middle = left + width + gap / 2
        axes.text(middle, 0, "→" if stop.sent else stop.behind, ha="center", va="center", size=9.5, color=INK)
        if stop.sent:
            axes.text(middle, -5, f"{stop.behind}\n{stop.sent:.0kB}", ha="center", va="top", size=7.5, color=INK)
    return Picture(figure, caption=caption, alt=alt)


def _tensor(axes: Axes, box: tuple[float, float, float, float], lies: Lies, ranks: int) -> None:
    """One tensor in its box (left, bottom, width, height)."""
    left, bottom, width, height = box
    if lies == "whole":
        axes.add_patch(Rectangle((left, bottom), width, height, facecolor=COPY, edgecolor=INK, lw=0.8))
    for rank in range(0 if lies == "whole" else ranks):
        place = {
            "columns": (left + rank * width / ranks, bottom, width / ranks, height),
            "rows": (left, bottom + height - (rank + 1) * height / ranks, width, height / ranks),
            "terms": (left + rank * 6 / ranks, bottom - rank * 6 / ranks, width - 6, height),
        }[lies]
        axes.add_patch(Rectangle(place[:2], *place[2:], facecolor=series_color(rank), edgecolor="white", lw=0.6))


WIDTHS = {"stream": 1, "norm": 1, "q, k, v": 3, "weights": 4, "mix": 1, "sum": 1, "norm ": 1, "hidden": 4, "GELU": 4}
"""Tensors kept for a block's backward pass, in widths of the stream: 8 heads, 32 tokens and width 64 (lesson 08)."""
INSIDE = ("q, k, v", "weights", "mix", "hidden", "GELU")
"""Tensors that have heads or hidden features, and are cut along them."""
BLOCK: dict[str, tuple[Lies, dict[str, str]]] = {
    "tensor": ("whole", {"norm": "$f$", "mix": r"$\bar f$", "norm ": "$f$", "GELU": r"$\bar f$"}),
    "tensor and sequence": ("rows", {"norm": "$g$", "mix": r"$\bar g$", "norm ": "$g$", "GELU": r"$\bar g$"}),
}
"""Kind of parallelism → layout of the stream between the split layers, and the operators behind some tensors."""


def block_on_ranks(*, caption: str) -> Picture:
    """A transformer block on four ranks: rows are ranks, boxes are as wide as their tensors, filled as far as held.

    In each box, to the right are features and downwards tokens.
    """
    ranks, gap = 4, 0.45
    figure, panels = new_figure(rows=len(BLOCK), height=(0.75 + 0.33 * ranks) * len(BLOCK))
    lefts = dict(zip(WIDTHS, accumulate((width + gap for width in WIDTHS.values()), initial=0.0)))
    words, told = {"whole": "whole on every rank", "columns": "cut by features", "rows": "cut by tokens"}, []
    for axes, (kind, (between, operators)) in zip(panels, BLOCK.items(), strict=True):
        axes.set(xlim=(-0.1, sum(WIDTHS.values()) + len(WIDTHS) * gap), ylim=(ranks, -0.55))
        axes.set_title(f"{kind} parallelism", size=9.5, loc="left")
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.set_xticks([lefts[name] + WIDTHS[name] / 2 for name in WIDTHS], [*WIDTHS])
        axes.set_yticks([rank + 0.45 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
        axes.tick_params(length=0, labelsize=7.5)
        parts = []
        for name, width in WIDTHS.items():
            lies = "columns" if name in INSIDE else between
            for rank in range(ranks):
                _share(axes, (lefts[name], width), rank, ranks, lies)
            sign = operators.get(name, "").strip("$").replace(r"\bar f", "f-bar").replace(r"\bar g", "g-bar")
            parts.append(f"{name.strip()} {words[lies]}" + (f", then {sign}" if sign else ""))
        told.append(f"With {kind} parallelism on {ranks} ranks: {'; '.join(parts)}.")
        for name, sign in operators.items():
            place = lefts[name] + WIDTHS[name] + gap / 2
            axes.axvline(place, ymax=ranks / (ranks + 0.55), color=INK, lw=1, ls="--")
            axes.text(place, -0.3, sign, ha="center", va="center", size=11, color=INK)
    return Picture(figure, caption=caption, alt=" ".join(told))


def _share(axes: Axes, box: tuple[float, float], rank: int, ranks: int, lies: Lies) -> None:
    """Part of one tensor, in its box (left, width), that one rank holds."""
    (left, full), height = box, 0.8
    axes.add_patch(Rectangle((left, rank + 0.05), full, height, facecolor="white", edgecolor=GRID, lw=0.8))
    right, down, width, tall = {
        "whole": (0.0, 0.0, 1.0, 1.0),
        "columns": (rank / ranks, 0.0, 1 / ranks, 1.0),
        "rows": (0.0, rank / ranks, 1.0, 1 / ranks),
    }[lies]
    corner = (left + full * right, rank + 0.05 + height * down)
    color = COPY if lies == "whole" else series_color(rank)
    axes.add_patch(Rectangle(corner, full * width, height * tall, facecolor=color, edgecolor=MUTED, lw=0.5))


def ring_in_time(orders: Mapping[str, Sequence[Sequence[float]]], *, caption: str) -> Picture:
    """Ranks at work in ring attention, for each order of the sequence; a step lasts until its slowest rank is done.

    The colour is that of the rank whose keys are at hand.

    Args:
        orders: name → for each step of the ring, the work of each rank.
    """
    ranks = len(next(iter(orders.values()))[0])
    ends = {name: [0.0, *accumulate(max(row) for row in steps)] for name, steps in orders.items()}
    longest = max(each[-1] for each in ends.values())
    figure, panels = new_figure(rows=len(orders), height=(0.65 + 0.22 * ranks) * len(orders))
    told = []
    for axes, (name, steps) in zip(panels, orders.items(), strict=True):
        last = ends[name][-1]
        for number, row in enumerate(steps):
            for rank, work in enumerate(row):
                color = series_color((rank - number) % ranks)
                axes.add_patch(Rectangle((ends[name][number], rank - 0.4), work, 0.8, facecolor=color, lw=0))
        for end in ends[name][1:]:
            axes.axvline(end, color=INK, lw=0.8, ls="--")
        axes.set(xlim=(0, 1.02 * longest), ylim=(ranks - 0.5, -0.5))
        axes.set_title(f"{name}: all are done after {last:g}", size=9.5, loc="left")
        axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axes.grid(False, axis="y")
        each = ", ".join(f"{sum(work):g}" for work in zip(*steps))
        told.append(f"{name}: {len(steps)} steps, ended after {last:g} squares; the ranks compute {each} useful ones.")
    panels[-1].set_xlabel("useful scores, in squares of one rank's tokens")
    return Picture(figure, caption=caption, alt=" ".join(told))
