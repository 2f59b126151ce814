"""Pictures of collectives: what each rank holds, and who sends to whom in which round.

Lesson 00 uses this module; lesson 06 uses all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.figures.style import GRID, INK, MUTED, PALETTE, new_figure, present, series_color
from course_lib.ranks import schedules
from course_lib.ranks.schedules import Schedule

Holding = list[list[set[int]]]
"""holding[rank][part] is the set of ranks whose summand this rank has added into that part."""


def two_passes(world_size: int) -> list[tuple[str, Holding]]:
    """What each rank holds before an all-reduce, after its reduce-scatter and after its all-gather.

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
        axes.set_title(title)
        _grid(axes, len(holding), len(holding[0]))
        for rank, parts in enumerate(holding):
            for part, summands in enumerate(parts):
                _cell(axes, part, rank, sorted(summands))
    return figure


def draw_film(frames: Sequence[tuple[str, Holding]], marks: Sequence[set[tuple[int, int]]]) -> Figure:
    """A film strip of holdings, four in a row; the cells (rank, part) in `marks` have just arrived."""
    world_size = len(frames[0][1])
    rows = math.ceil(len(frames) / 4)
    figure, panels = new_figure(rows, 4, height=2.05 * rows)
    for axes in panels[len(frames) :]:
        axes.set_axis_off()
    for axes, (title, holding), arrived in zip(panels, frames, marks, strict=False):
        axes.set_title(title, size=9.5)
        _grid(axes, world_size, world_size, short=True)
        for rank, parts in enumerate(holding):
            for part, summands in enumerate(parts):
                _cell(axes, part, rank, sorted(summands))
                if (rank, part) in arrived:
                    axes.plot(part + 0.5, rank + 0.5, "o", ms=6 if world_size < 6 else 4, color="white", mec=INK)
    return figure


def _grid(axes: Axes, ranks: int, parts: int, short: bool = False) -> None:
    """An empty board: ranks as rows, parts as columns."""
    axes.set(xlim=(0, parts), ylim=(ranks, 0), aspect="equal")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_xticks([part + 0.5 for part in range(parts)], [str(i) if short else f"part {i}" for i in range(parts)])
    axes.set_yticks([rank + 0.5 for rank in range(ranks)], [str(i) if short else f"rank {i}" for i in range(ranks)])
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED)


def _cell(axes: Axes, column: int, row: int, summands: list[int]) -> None:
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


def rounds(world_size: int = 4) -> None:
    """Show who sends to whom in which round, for the four all-reduces of `ranks.schedules`."""
    present(
        draw_rounds({name: _plan(name, world_size) for name in schedules.ALL_REDUCE}),
        caption="Time runs to the right; an arrow is a message, thin where it carries only a part. Orange arrows are "
        "added up on arrival, blue ones are kept. The manager's lines meet in one rank; the ring's never do.",
        alt=f"Four diagrams with {world_size} ranks as horizontal lines. Direct: one round in which each sends to "
        f"every other. Manager: one round in which all send to rank 0, one in which rank 0 sends to all. Ring: "
        f"{2 * world_size - 2} rounds in which each rank sends one thin arrow to the next. Tree: pairs, then pairs of "
        f"pairs send towards rank 0, and the same way back.",
    )


def _plan(name: str, world_size: int) -> list[Schedule]:
    return [schedules.ALL_REDUCE[name](world_size, rank) for rank in range(world_size)]


def draw_rounds(plans: Mapping[str, list[Schedule]]) -> Figure:
    """The figure of `rounds`: a panel for each name → schedules of all ranks."""
    ranks = max(map(len, plans.values()))
    figure, panels = new_figure(math.ceil(len(plans) / 2), 2, height=(0.55 + 0.33 * ranks) * math.ceil(len(plans) / 2))
    for axes, (name, plan) in zip(panels, plans.items(), strict=False):
        length = len(plan[0])
        axes.set(title=name, xlim=(-0.1, max(length, 2) + 0.1), ylim=(len(plan) - 0.6, -0.4))
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.set_yticks(range(len(plan)), [f"rank {rank}" for rank in range(len(plan))])
        axes.set_xticks([i + 0.5 for i in range(length)], ["round 1", *map(str, range(2, length + 1))])
        axes.tick_params(length=0, labelsize=8.5, labelcolor=MUTED)
        axes.hlines(range(len(plan)), 0, length, color=GRID, lw=1.2)
        thin = name not in schedules.WHOLE
        for number, every in enumerate(zip(*plan)):
            for source, _, to, receive in schedules.messages(number, every):
                color = PALETTE["measured"] if receive.add else PALETTE["predicted"]
                style = {"arrowstyle": "-|>", "color": color, "lw": 1.0 if thin else 2.0, "shrinkA": 0, "shrinkB": 0}
                axes.annotate("", (number + 0.92, to), (number + 0.08, source), arrowprops=style)
    return figure


BEFORE_AND_AFTER: dict[str, tuple[list[list[str]], list[list[str]]]] = {
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
"""Collective → what three ranks (rows) hold before and after. A letter is the rank it came from, Σ the sum of all."""


def before_and_after() -> None:
    """Show the six collectives by what they do to three ranks."""
    present(
        draw_before_and_after(),
        caption="Left of the arrow before, right of it after; a row is a rank, a colour the rank that brought it, grey "
        "a sum over all ranks. Reduce-scatter and all-gather, one after the other, are an all-reduce.",
        alt="Six pairs of grids with three ranks as rows. "
        + " ".join(
            f"{name}: before {_told(before)}; after {_told(after)}."
            for name, (before, after) in BEFORE_AND_AFTER.items()
        ),
    )


def _told(board: list[list[str]]) -> str:
    return ", ".join(" ".join(filter(None, row)) or "nothing" for row in board)


def draw_before_and_after() -> Figure:
    """The figure of `before_and_after`."""
    figure, panels = new_figure(2, 3, height=3.3)
    for axes, (name, boards) in zip(panels, BEFORE_AND_AFTER.items(), strict=True):
        width = len(boards[0][0])
        axes.set(title=name, xlim=(2.4 - width, 5.6 + width), ylim=(3.05, -0.05), aspect="equal")
        axes.set_axis_off()
        axes.annotate("", (4.75, 1.5), (3.25, 1.5), arrowprops={"arrowstyle": "-|>", "color": MUTED})
        for left, board in zip((3 - width, 5), boards, strict=True):
            for rank, row in enumerate(board):
                for column, content in enumerate(row):
                    _box(axes, left + column, rank, content)
    return figure


def _box(axes: Axes, x: float, y: float, content: str) -> None:
    owner = "abc".find(content[:1]) if content else -1
    color = "white" if not content else series_color(owner) if owner >= 0 else "#5F5F5F"
    axes.add_patch(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, facecolor=color, edgecolor=MUTED, lw=0.7))
    axes.text(x + 0.5, y + 0.53, content, ha="center", va="center", color="white", size=9, weight="bold")
