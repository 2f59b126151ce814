"""Pictures of what each rank holds before, during and after a collective.

Lesson 00 opens this module.
"""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.figures.style import INK, MUTED, new_figure, present, series_color

Holding = list[list[set[int]]]
"""holding[rank][part] is the set of ranks whose summand this rank has added into that part."""


def two_passes(world_size: int) -> list[tuple[str, Holding]]:
    """What each rank holds before an all-reduce, after its reduce-scatter and after its all-gather."""
    ranks, everyone = range(world_size), set(range(world_size))
    before = [[{rank} for _ in ranks] for rank in ranks]
    scattered = [[everyone if part == rank else {rank} for part in ranks] for rank in ranks]
    gathered = [[everyone for _ in ranks] for _ in ranks]
    return [("before", before), ("each adds up one part", scattered), ("each hands it to all", gathered)]


def all_reduce_in_two_passes(world_size: int = 4) -> None:
    """Show the two passes of a bandwidth-optimal all-reduce (reduce-scatter, then all-gather)."""
    share = f"{world_size - 1}/{world_size}"
    present(
        draw_two_passes(world_size),
        caption=f"Each pass moves {share} of the tensor out of each rank. A striped cell is a finished sum: "
        f"after the first pass each rank owns one, after the second everybody has all.",
        alt=f"Three panels with {world_size} ranks as rows and {world_size} parts of the tensor as columns. "
        "Before: each row has its own colour. After the first pass the cell on the diagonal of each row holds all "
        "colours. After the second pass all cells hold all colours.",
    )


def draw_two_passes(world_size: int) -> Figure:
    """The figure of `all_reduce_in_two_passes`, not yet shown."""
    figure, panels = new_figure(1, 3, height=2.4)
    for axes, (title, holding) in zip(panels, two_passes(world_size), strict=True):
        axes.set(title=title, xlim=(0, world_size), ylim=(world_size, 0), aspect="equal")
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.set_xticks([part + 0.5 for part in range(world_size)], [f"part {part}" for part in range(world_size)])
        axes.set_yticks([rank + 0.5 for rank in range(world_size)], [f"rank {rank}" for rank in range(world_size)])
        axes.tick_params(length=0, labelsize=8, labelcolor=MUTED)
        for rank, parts in enumerate(holding):
            for part, summands in enumerate(parts):
                _cell(axes, part, rank, sorted(summands))
    return figure


def _cell(axes, column: int, row: int, summands: list[int]) -> None:
    """One part on one rank, striped in the colours of the ranks whose summands it contains."""
    stripe = 0.84 / len(summands)
    for i, summand in enumerate(summands):
        corner = (column + 0.08 + i * stripe, row + 0.08)
        axes.add_patch(Rectangle(corner, stripe, 0.84, facecolor=series_color(summand), linewidth=0))
    finished = len(summands) > 1
    axes.add_patch(
        Rectangle(
            (column + 0.08, row + 0.08), 0.84, 0.84, fill=False, edgecolor=INK, linewidth=1.6 if finished else 0.4
        )
    )
