"""Pictures of collectives: summands that each rank holds, and messages round by round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course_kit.notebook.picture import GRID, INK, MUTED, PALETTE, Picture, new_figure, series_color
from course_lib.collectives import schedules
from course_lib.collectives.schedules import Schedule

Holding = list[list[set[int]]]
"""Sets of ranks: holding[rank][part] are those whose summand this rank has added into that part."""


def two_passes(world_size: int) -> list[tuple[str, Holding]]:
    """Holdings before an all-reduce, after its reduce-scatter and after its all-gather.

    Raises:
        ValueError: fewer than 1 or more than 16 ranks, which no picture can show.
    """
    if not 1 <= world_size <= 16:
        raise ValueError(f"world_size={world_size}: the picture has room for 1 to 16 ranks")
    ranks, everyone = range(world_size), set(range(world_size))
    before = [[{rank} for _ in ranks] for rank in ranks]
    scattered = [[everyone if part == rank else {rank} for part in ranks] for rank in ranks]
    gathered = [[everyone for _ in ranks] for _ in ranks]
    return [("before", before), ("each adds up one part", scattered), ("each hands it to all", gathered)]


def all_reduce_in_two_passes(world_size: int = 4, *, caption: str) -> Picture:
    """The two passes of a bandwidth-optimal all-reduce (reduce-scatter, then all-gather)."""
    figure, panels = new_figure(1, 3, height=2.4)
    for axes, (title, holding) in zip(panels, two_passes(world_size), strict=True):
        axes.set_title(title)
        _holding(axes, holding)
    alt = (
        f"Three panels with {world_size} ranks as rows and {world_size} parts of the tensor as columns. Before: each "
        "row has its own colour. After the first pass the cell on the diagonal of each row holds all colours. After "
        "the second pass all cells hold all colours."
    )
    return Picture(figure, caption=caption, alt=alt)


def film_of_holdings(
    frames: Sequence[tuple[str, Holding]], marks: Sequence[set[tuple[int, int]]], *, caption: str, alt: str
) -> Picture:
    """A film strip of holdings, four in a row; the cells (rank, part) in `marks` have just arrived."""
    world_size = len(frames[0][1])
    rows = math.ceil(len(frames) / 4)
    figure, panels = new_figure(rows, 4, height=2.05 * rows)
    for axes in panels[len(frames) :]:
        axes.set_axis_off()
    for axes, (title, holding), arrived in zip(panels, frames, marks, strict=False):
        axes.set_title(title, size=9.5)
        _holding(axes, holding, short=True)
        for rank, part in sorted(arrived):
            axes.plot(part + 0.5, rank + 0.5, "o", ms=6 if world_size < 6 else 4, color="white", mec=INK)
    return Picture(figure, caption=caption, alt=alt)


def _holding(axes: Axes, holding: Holding, short: bool = False) -> None:
    """A board with ranks as rows and parts as columns, and in each cell the summands that it holds."""
    ranks, parts = len(holding), len(holding[0])
    axes.set(xlim=(0, parts), ylim=(ranks, 0), aspect="equal")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_xticks([part + 0.5 for part in range(parts)], [str(i) if short else f"part {i}" for i in range(parts)])
    axes.set_yticks([rank + 0.5 for rank in range(ranks)], [str(i) if short else f"rank {i}" for i in range(ranks)])
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED)
    for rank, row in enumerate(holding):
        for part, summands in enumerate(row):
            _cell(axes, part, rank, sorted(summands))


def _cell(axes: Axes, column: int, row: int, summands: list[int]) -> None:
    """One part on one rank, striped in the colours of the ranks whose summands it contains."""
    stripe = 0.84 / len(summands)
    for i, summand in enumerate(summands):
        corner = (column + 0.08 + i * stripe, row + 0.08)
        axes.add_patch(Rectangle(corner, stripe, 0.84, facecolor=series_color(summand), linewidth=0))
    width = 1.6 if len(summands) > 1 else 0.4
    axes.add_patch(Rectangle((column + 0.08, row + 0.08), 0.84, 0.84, fill=False, edgecolor=INK, linewidth=width))


def messages_by_round(world_size: int = 4, *, caption: str) -> Picture:
    """Messages of each round, for the four all-reduces of `collectives.schedules`."""
    rows = math.ceil(len(schedules.ALL_REDUCE) / 2)
    figure, panels = new_figure(rows, 2, height=(0.55 + 0.33 * world_size) * rows)
    for axes, (name, schedule) in zip(panels, schedules.ALL_REDUCE.items(), strict=False):
        axes.set_title(name)
        _rounds(axes, [schedule(world_size, rank) for rank in range(world_size)], thin=name not in schedules.WHOLE)
    alt = (
        f"Four diagrams with {world_size} ranks as horizontal lines. Direct: one round in which each sends to every "
        f"other. Manager: one round in which all send to rank 0, one in which rank 0 sends to all. Ring: "
        f"{2 * world_size - 2} rounds in which each rank sends one thin arrow to the next. Tree: pairs, then pairs of "
        f"pairs send towards rank 0, and the same way back."
    )
    return Picture(figure, caption=caption, alt=alt)


def _rounds(axes: Axes, plan: list[Schedule], thin: bool) -> None:
    """The schedules of all ranks: an arrow for each message, thin where it carries a part only."""
    length = len(plan[0])
    axes.set(xlim=(-0.1, max(length, 2) + 0.1), ylim=(len(plan) - 0.6, -0.4))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_yticks(range(len(plan)), [f"rank {rank}" for rank in range(len(plan))])
    axes.set_xticks([i + 0.5 for i in range(length)], ["round 1", *map(str, range(2, length + 1))])
    axes.tick_params(length=0, labelsize=8.5, labelcolor=MUTED)
    axes.hlines(range(len(plan)), 0, length, color=GRID, lw=1.2)
    for number, every in enumerate(zip(*plan)):
        for source, _, to, receive in schedules.messages(number, every):
            color = PALETTE["measured"] if receive.add else PALETTE["predicted"]
            style = {"arrowstyle": "-|>", "color": color, "lw": 1.0 if thin else 2.0, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (number + 0.92, to), (number + 0.08, source), arrowprops=style)


Board = Sequence[Sequence[str]]
"""Rows are ranks, columns are parts; each holds a word, or "" for nothing."""
BEFORE_AND_AFTER: dict[str, tuple[Board, Board]] = {
    "broadcast": ([["a"], [""], [""]], [["a"], ["a"], ["a"]]),
    "reduce": ([["a"], ["b"], ["c"]], [["Σ"], [""], [""]]),
    "all-reduce": ([["a"], ["b"], ["c"]], [["Σ"], ["Σ"], ["Σ"]]),
    "reduce-scatter": (
        [["a0", "a1", "a2"], ["b0", "b1", "b2"], ["c0", "c1", "c2"]],
        [["Σ0", "", ""], ["", "Σ1", ""], ["", "", "Σ2"]],
    ),
    "all-gather": ([["a", "", ""], ["", "b", ""], ["", "", "c"]], [["a", "b", "c"]] * 3),
    "all-to-all": (
        [["a0", "a1", "a2"], ["b0", "b1", "b2"], ["c0", "c1", "c2"]],
        [["a0", "b0", "c0"], ["a1", "b1", "c1"], ["a2", "b2", "c2"]],
    ),
}
"""Collective → boards of three ranks (rows) before and after. A letter is the rank of origin, Σ the sum of all."""


def before_and_after(*, caption: str) -> Picture:
    """The six collectives, by boards of three ranks before and after."""
    figure, panels = new_figure(2, 3, height=3.3)
    colors = {"": "white", "Σ": "#5F5F5F"} | {letter: series_color(rank) for rank, letter in enumerate("abc")}
    told = []
    for axes, (name, boards) in zip(panels, BEFORE_AND_AFTER.items(), strict=True):
        width = len(boards[0][0])
        axes.set(title=name, xlim=(2.4 - width, 5.6 + width), ylim=(3.05, -0.05), aspect="equal")
        axes.set_axis_off()
        axes.annotate("", (4.75, 1.5), (3.25, 1.5), arrowprops={"arrowstyle": "-|>", "color": MUTED})
        for left, board in zip((3 - width, 5), boards, strict=True):
            draw_board(axes, board, left, colors)
        told.append(f"{name}: before {_told(boards[0])}; after {_told(boards[1])}.")
    return Picture(figure, caption=caption, alt=f"Six pairs of grids with three ranks as rows. {' '.join(told)}")


def _told(board: Board) -> str:
    return ", ".join(" ".join(filter(None, row)) or "nothing" for row in board)


def draw_board(axes: Axes, board: Board, left: float, colors: Mapping[str, str]) -> None:
    """A box for each part on each rank; `colors`: first letter of its content → its colour."""
    for rank, row in enumerate(board):
        for column, content in enumerate(row):
            x = left + column
            face = {"facecolor": colors[content[:1]], "edgecolor": MUTED, "lw": 0.7}
            axes.add_patch(Rectangle((x + 0.06, rank + 0.06), 0.88, 0.88, **face))
            axes.text(x + 0.5, rank + 0.53, content, ha="center", va="center", color="white", size=9, weight="bold")
