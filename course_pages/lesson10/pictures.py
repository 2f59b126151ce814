"""Pictures of ZeRO: each rank's bytes at each stage, the all-reduce cut in two, and one step of stage 3 in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from course_kit.notebook.picture import GRID, INK, MUTED, PALETTE, SERIES, Picture, legend, new_figure
from course_lib import predict
from course_lib.predict import Setup
from course_pages.shared.collectives import BEFORE_AND_AFTER, Board, draw_board

CATEGORIES = {"parameters": "weights", "gradients": "gradients", "optimizer": "optimizer state"}
_MILLION = 10**6


def who_holds_what(ranks: int = 4, precision: predict.Precision = "mixed", *, caption: str) -> Picture:
    """A panel for each stage, a row for each rank: its own bytes are filled, those that others hold are white.

    Lengths are bytes: of a parameter with AdamW, 2 + 2 + 12 in "mixed" and 4 + 4 + 8 in "fp32".

    Raises:
        ValueError: fewer than 2 ranks or more than 8, or as `predict.model_states`.
    """
    if not 2 <= ranks <= 8:
        raise ValueError(f"ranks={ranks}: the picture has room for 2 to 8")
    figure, panels = new_figure(2, 2, height=1.5 + 0.42 * ranks)
    plain = Setup(_MILLION, ranks, precision=precision, data=ranks)
    whole, told = predict.model_states(plain), []
    for zero, axes in enumerate(panels):
        states = predict.model_states(plain.with_(zero=zero))
        held = states.total / _MILLION
        axes.set_title(f"stage {zero}: {held:.3g}Ψ bytes on a rank", loc="left", fontsize=10)
        left, words = 0.0, []
        for category, name in CATEGORIES.items():
            width = whole[category] / _MILLION
            is_cut = states[category] < whole[category]
            _tiles(axes, left, width, ranks, is_cut, PALETTE[category])
            words.append(f"{name} {states[category] / _MILLION:.3g}")
            left += width
        axes.set(xlim=(-0.1, left + 0.1), ylim=(ranks - 0.4, -0.6))
        axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.grid(False)
        axes.spines[["left", "bottom"]].set_visible(False)
        told.append(f"Stage {zero}: {', '.join(words)}, together {held:.3g}.")
    handles = [Patch(label=name, facecolor=PALETTE[category]) for category, name in CATEGORIES.items()]
    handles.append(Patch(label="held by others", facecolor="white", edgecolor=MUTED))
    legend(figure, "lower center", len(handles), handles=handles, fontsize=9.5)
    alt = f"Four panels with {ranks} ranks as rows. Bytes of each parameter that a rank holds. {' '.join(told)}"
    return Picture(figure, caption=caption, alt=alt)


def _tiles(axes: Axes, left: float, width: float, ranks: int, is_cut: bool, color: str) -> None:
    """One category on all ranks, in as many parts as there are ranks."""
    part = width / ranks
    for rank in range(ranks):
        for place in range(ranks):
            face = color if place == rank or not is_cut else "white"
            corner = (left + place * part, rank - 0.36)
            axes.add_patch(Rectangle(corner, part, 0.72, facecolor=face, edgecolor=GRID, lw=0.6))
        axes.add_patch(Rectangle((left, rank - 0.36), width, 0.72, fill=False, edgecolor=MUTED, lw=0.8))


# ---- where the all-reduce is cut -----------------------------------------------------------------------------------

_OWN, _PART = BEFORE_AND_AFTER["reduce-scatter"]
_MEAN: Board = [[f"Σ{part}" for part in range(3)]] * 3
_STEPPED: Board = [[f"w{part}" if part == rank else "" for part in range(3)] for rank in range(3)]
_WEIGHTS: Board = [[f"w{part}" for part in range(3)]] * 3
WAYS: dict[str, tuple[list[Board], list[str]]] = {
    "data parallelism": ([_OWN, _PART, _MEAN, _WEIGHTS], ["reduce-\nscatter", "all-\ngather", "step\non all"]),
    "ZeRO": ([_OWN, _PART, _STEPPED, _WEIGHTS], ["reduce-\nscatter", "step on\na third", "all-\ngather"]),
}
"""Way → boards of three ranks, one after the other, and the moves between them."""
_COLORS = {"": "white", "a": SERIES[3], "b": SERIES[1], "c": SERIES[7], "Σ": PALETTE["gradients"]}
_COLORS["w"] = PALETTE["parameters"]
"""First letter → colour: "a0" is a rank's own gradient, "Σ0" the mean, "w0" the new weight."""
_BOARD, _GAP = 3, 2.1


def where_the_step_stands(*, caption: str) -> Picture:
    """The optimizer's step behind both halves of the all-reduce, and between them: the same messages."""
    figure, panels = new_figure(2, 1, height=3.1)
    told = []
    for axes, (way, (boards, moves)) in zip(panels, WAYS.items(), strict=True):
        width = len(boards) * _BOARD + len(moves) * _GAP
        axes.set_title(way, loc="left", fontsize=10)
        axes.set(xlim=(-1.7, width + 0.1), ylim=(3.1, -0.1), aspect="equal")
        axes.set_axis_off()
        for rank in range(3):
            axes.text(-0.2, rank + 0.5, f"rank {rank}", ha="right", va="center", color=INK, size=9)
        for number, board in enumerate(boards):
            left = number * (_BOARD + _GAP)
            draw_board(axes, board, left, _COLORS)
            if number < len(moves):
                start = left + _BOARD
                arrow = {"arrowstyle": "-|>", "color": MUTED}
                axes.annotate("", (start + _GAP - 0.1, 2.0), (start + 0.1, 2.0), arrowprops=arrow)
                color = PALETTE["optimizer"] if moves[number].startswith("step") else INK
                box = {"facecolor": color, "edgecolor": "none", "pad": 2} if color != INK else None
                middle = start + _GAP / 2
                axes.text(middle, 1.65, moves[number], ha="center", va="bottom", size=9, color=INK, bbox=box)
        told.append(
            f"{way}: {', then '.join(move.replace('-' + chr(10), '-').replace(chr(10), ' ') for move in moves)}."
        )
    alt = (
        f"Two rows of boards with three ranks and three parts of the weights. {' '.join(told)} After the "
        "reduce-scatter each rank holds the mean gradient of one part. Data parallelism gathers the means and every "
        "rank steps on all parts; ZeRO steps on the part that the rank has, and gathers weights. Both end with the "
        "same weights everywhere."
    )
    return Picture(figure, caption=caption, alt=alt)


# ---- stage 3 in time -----------------------------------------------------------------------------------------------

Work = Literal["gather", "forward", "backward", "scatter"]
COLORS: dict[Work, str] = {
    "gather": PALETTE["parameters"], "forward": SERIES[5], "backward": SERIES[2], "scatter": SERIES[1]
}  # fmt: skip
LABELS: dict[Work, str] = {
    "gather": "all-gather of weights", "forward": "forward", "backward": "backward",
    "scatter": "reduce-scatter of gradients",
}  # fmt: skip


class Bar(NamedTuple):
    """A piece of work on one unit; gather and scatter occupy the link, the others the processor."""

    work: Work
    unit: int
    start: float
    end: float


def zero3_bars(units: int, gather: float, prefetch: bool) -> list[Bar]:
    """A step of `parallel.zero3` in units of a forward pass of one unit; a backward pass takes 2.

    Link and processor do one thing at a time, in the order in which it was asked for. A unit is asked for when it is
    needed; with `prefetch`, when the one before it begins.
    """
    bars: list[Bar] = []
    link = busy = 0.0
    here: dict[int, float] = {}
    order = [("forward", unit) for unit in range(units)] + [("backward", unit) for unit in reversed(range(units))]

    def ask(unit: int, now: float) -> None:
        nonlocal link
        if unit not in here:
            bars.append(Bar("gather", unit, start := max(now, link), start + gather))
            here[unit] = link = start + gather

    for place, (work, unit) in enumerate(order):
        ask(unit, busy)
        start = max(busy, here[unit])
        busy = start + (1 if work == "forward" else 2)
        following = order[place + 1] if place + 1 < len(order) else (work, unit)
        if prefetch and following[1] != unit:  # the last unit stands twice in a row: too early to ask
            ask(following[1], start)
        bars.append(Bar("forward" if work == "forward" else "backward", unit, start, busy))
        del here[unit]
        if work == "backward":
            bars.append(Bar("scatter", unit, begin := max(busy, link), begin + gather))
            link = begin + gather
    return bars


def weights_held(bars: Sequence[Bar]) -> list[tuple[float, int]]:
    """(time, units whose weights are held from then on): each from the start of its gather to the end of its use."""
    starts = [bar.start for bar in bars if bar.work == "gather"]
    ends = [bar.end for bar in bars if bar.work in ("forward", "backward")]
    return [(time, sum(s <= time for s in starts) - sum(e <= time for e in ends)) for time in sorted({*starts, *ends})]


def zero3_timeline(units: int = 4, gather: float = 0.8, *, caption: str) -> Picture:
    """One step of ZeRO-3 without and with prefetch: the link, the processor, and the number of units with weights held.

    Args:
        units: number of units, which are gathered one at a time.
        gather: duration of an all-gather or a reduce-scatter of a unit, in forward passes of a unit.

    Raises:
        ValueError: no unit, more than 9, or a time that is not positive.
    """
    if not 1 <= units <= 9 or gather <= 0:
        raise ValueError(f"units={units}, gather={gather}: give 1 to 9 units, and a positive time")
    figure, panels = new_figure(2, 1, height=4.4)
    both = {"without prefetch": zero3_bars(units, gather, False), "with prefetch": zero3_bars(units, gather, True)}
    end, told = max(bar.end for bars in both.values() for bar in bars), []
    for axes, (name, bars) in zip(panels, both.items(), strict=True):
        last, held = max(bar.end for bar in bars), weights_held(bars)
        _lanes(axes, bars, held, end)
        axes.set_title(f"{name}: done after {last:.3g}", loc="left", fontsize=10)
        told.append(f"{name}, done after {last:.3g}, at most {max(n for _, n in held)} of {units} units' weights held")
    panels[-1].set_xlabel("time (forward passes of a unit)")
    legend(figure, "lower center", len(COLORS), {LABELS[work]: COLORS[work] for work in COLORS}, fontsize=9)
    alt = (
        f"Two charts of one step over {units} units, each with a row for the link, one for the processor and one for "
        f"the weights that are held. Time in forward passes of a unit: {'; '.join(told)}. Each unit is gathered, run "
        "and freed in the forward pass; gathered, run and freed again in the backward pass, then its gradients are "
        "scattered."
    )
    return Picture(figure, caption=caption, alt=alt)


def _lanes(axes: Axes, bars: Sequence[Bar], held: Sequence[tuple[float, int]], end: float) -> None:
    for bar in bars:
        row, width = (0 if bar.work in ("gather", "scatter") else 1), bar.end - bar.start
        look = {"facecolor": COLORS[bar.work], "edgecolor": "white", "lw": 0.8}
        axes.broken_barh([(bar.start, width)], (row - 0.4, 0.8), **look)
        if width > 0.018 * end:
            ink = "white" if bar.work == "gather" else INK
            axes.text(bar.start + width / 2, row, str(bar.unit), ha="center", va="center", fontsize=8.5, color=ink)
    most = max(count for _, count in held)
    times, counts = [time for time, _ in held], [2.4 - 0.8 * count / most for _, count in held]
    axes.fill_between(times, 2.4, counts, step="post", color=PALETTE["parameters"], alpha=0.35, lw=0)
    steps = [now for now, before in zip(held, [(0.0, 0), *held]) if now[1] != before[1]]
    for (time, count), (until, _) in zip(steps, steps[1:]):
        axes.text((time + until) / 2, 2.22, str(count), ha="center", va="center", fontsize=8.5, color=INK)
    axes.set(xlim=(0, 1.005 * end), ylim=(2.5, -0.55))
    axes.set_yticks(range(3), ["link", "processor", "weights held\n(units)"])
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
