"""Pictures of offload: the flow of ZeRO-Offload, a step on card, link and processor, a delay's price, full tiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course_kit.accounts import CATEGORIES, MemoryAccount
from course_kit.notebook.picture import INK, MUTED, PALETTE, PAPER, SERIES, Picture, legend, line_look, new_figure, note
from course_kit.units import Bytes, Seconds

# ---- the flow of ZeRO-Offload ---------------------------------------------------------------------------------------

PLACES = {
    "forward": (0, 1), "weights": (1, 1), "backward": (2, 1), "states": (0, 0), "update": (1, 0), "gradients": (2, 0)
}  # fmt: skip
"""Name → column and row; row 1 is on the card, row 0 in main memory."""
_COLORS = {"gradients": PALETTE["gradients"], "weights": PALETTE["parameters"], "states": PALETTE["optimizer"]}
_WIDE, _HIGH = 1.1, 0.56


def the_cut(flow: Mapping[tuple[str, str], float], held: Mapping[str, float], *, caption: str) -> Picture:
    """ZeRO-Offload: a training step's work and states, above a line on the card and below it away; arrows carry bytes.

    Args:
        flow: (from, to) → bytes a parameter, between names in `PLACES`.
        held: state → bytes a parameter.

    Raises:
        ValueError: a name that has no place.
    """
    if unknown := {name for pair in flow for name in pair} - set(PLACES):
        raise ValueError(f"no place for {', '.join(sorted(unknown))}; there is one for {', '.join(PLACES)}")
    figure, (axes,) = new_figure(height=3.1)
    crossing = {pair: n for pair, n in flow.items() if PLACES[pair[0]][1] != PLACES[pair[1]][1]}
    for (start, end), n_bytes in flow.items():
        shift = 0.16 if (end, start) in flow else 0.0
        _arrow(axes, start, end, f"{n_bytes:g}Ψ", (start, end) in crossing, shift if start < end else -shift)
    for name in PLACES:
        (x, y), color = _spot(name), _COLORS.get(name, "white")
        look = {"facecolor": color, "edgecolor": MUTED, "lw": 0.9, "zorder": 3}
        axes.add_patch(Rectangle((x - _WIDE / 2, y - _HIGH / 2), _WIDE, _HIGH, **look))
        words = f"{name}, {held[name]:g}Ψ" if name in held else name
        ink = INK if color in ("white", PALETTE["optimizer"]) else "white"
        axes.text(x, y, words, ha="center", va="center", color=ink, size=9.5, zorder=4)
    axes.axhline(0.75, color=MUTED, lw=1.2, ls="--")
    axes.text(-1.5, 0.8, "card", color=MUTED, size=9.5, va="bottom")
    axes.text(-1.5, 0.7, "main memory", color=MUTED, size=9.5, va="top")
    axes.set(xlim=(-1.5, 5.3), ylim=(-0.4, 1.9))
    axes.set_axis_off()
    told = ", ".join(f"{start} to {end} {n:g}Ψ" for (start, end), n in crossing.items())
    alt = (
        f"A line between the card and main memory. On the card: {_names(1)}. In main memory: {_names(0)}. Over the "
        f"line goes: {told}, together {sum(crossing.values()):g}Ψ bytes."
    )
    return Picture(figure, caption=caption, alt=alt)


def _names(row: int) -> str:
    return ", ".join(name for name, (_, its) in PLACES.items() if its == row)


def _spot(name: str) -> tuple[float, float]:
    column, row = PLACES[name]
    return 2.2 * column, 1.5 * row


def _arrow(axes: Axes, start: str, end: str, words: str, crosses: bool, shift: float) -> None:
    """An arrow from box to box, `shift` higher where another arrow goes the other way."""
    (x0, y0), (x1, y1) = _spot(start), _spot(end)
    dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
    tail = (x0 + dx * _WIDE / 2, y0 + dy * _HIGH / 2 + shift)
    head = (x1 - dx * _WIDE / 2, y1 - dy * _HIGH / 2 + shift)
    color = SERIES[1] if crosses else MUTED
    arrow = {"arrowstyle": "-|>", "color": color, "lw": 2.2 if crosses else 1.2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", head, tail, arrowprops=arrow)
    middle = ((tail[0] + head[0]) / 2, (tail[1] + head[1]) / 2)
    axes.text(*middle, words, ha="center", va="center", size=9.5, color=color, bbox=PAPER, zorder=5)


# ---- a step in time -------------------------------------------------------------------------------------------------

Way = Literal["one after the other", "sent as soon as made", "one step late"]
Work = Literal["forward", "backward", "gradients", "update", "weights"]
ROWS: dict[Work, int] = {"forward": 0, "backward": 0, "gradients": 1, "update": 2, "weights": 3}
"""Work → row: the card computes, gradients are copied out, the processor updates, weights are copied back."""
COLORS: dict[Work, str] = {
    "forward": SERIES[5], "backward": SERIES[3], "gradients": PALETTE["gradients"], "update": PALETTE["optimizer"],
    "weights": PALETTE["parameters"],
}  # fmt: skip
TOOK: dict[Work, float] = {"forward": 1.0, "backward": 2.0, "gradients": 1.4, "update": 2.0, "weights": 1.4}
"""Seconds of each work on the whole model, chosen so that some of them can hide."""
BLOCKS = 3


class Bar(NamedTuple):
    """A piece of work on one block in one step; an update is of the gradients of the step that it names."""

    work: Work
    step: int
    block: int
    start: float
    end: float


def step_bars(way: Way, seconds: Mapping[Work, float], steps: int = 2) -> list[Bar]:
    """Work of some steps in `offload.zero_offload`, with `BLOCKS` blocks of equal size.

    Args:
        way: without overlap; with copies behind the work on other blocks; or with updates a step late besides.
        seconds: work → seconds for the whole model.
        steps: number of steps.
    """
    bars: list[Bar] = []
    free = dict.fromkeys(range(4), 0.0)

    def do(work: Work, step: int, block: int, after: float) -> float:
        row = ROWS[work]
        start = max(free[row], after)
        free[row] = start + seconds[work] / BLOCKS
        bars.append(Bar(work, step, block, start, free[row]))
        return free[row]

    def all_blocks(work: Work, step: int, after: float) -> float:
        return max(do(work, step, block, after) for block in range(BLOCKS))

    home, updated = 0.0, 0.0
    for step in range(steps):
        forward = all_blocks("forward", step, home)
        made = [do("backward", step, block, forward) for block in reversed(range(BLOCKS))]
        out = [made[-1]] * BLOCKS if way == "one after the other" else made
        arrived = max(do("gradients", step, BLOCKS - 1 - place, time) for place, time in enumerate(out))
        if way == "one step late":
            home = all_blocks("weights", step - 1, max(updated, arrived)) if step else max(made[-1], arrived)
            updated = all_blocks("update", step, max(updated, arrived))
        elif way == "sent as soon as made":
            home = max([do("weights", step, b, do("update", step, b, arrived)) for b in range(BLOCKS)])
        else:
            home = all_blocks("weights", step, all_blocks("update", step, arrived))
    return bars


def step_timeline(*, caption: str) -> Picture:
    """Two steps in each of the three ways, on the card, on both copy streams and on the processor."""
    ways = {way: step_bars(way, TOOK) for way in get_args(Way)}
    figure, panels = new_figure(len(ways), 1, height=5.4)
    end, told = max(bar.end for bars in ways.values() for bar in bars), []
    for axes, (way, bars) in zip(panels, ways.items(), strict=True):
        last = max(bar.end for bar in bars if ROWS[bar.work] == 0)
        for bar in bars:
            look = {"facecolor": COLORS[bar.work], "edgecolor": "white", "lw": 0.7}
            axes.broken_barh([(bar.start, bar.end - bar.start)], (ROWS[bar.work] - 0.4, 0.8), **look)
        for step, left, right, row in _spans(bars):
            ink = "white" if row in (1, 3) else INK
            middle, words = (left + right) / 2, f"step {step}" if row == 0 else str(step)
            axes.text(middle, row, words, ha="center", va="center", size=9, color=ink)
        axes.set(xlim=(0, 1.005 * end), ylim=(3.55, -0.55))
        axes.set_yticks(range(4), ["card", "copy out", "processor", "copy back"])
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.set_title(f"{way}: the second backward pass ends after {last:.3g}", loc="left", fontsize=10)
        told.append(f"{way}, {last:.3g}")
    panels[-1].set_xlabel("time (forward passes)")
    legend(figure, "lower center", len(COLORS), {**COLORS}, fontsize=9)
    alt = (
        "Three charts of two steps, with rows for the card, the copy out, the processor and the copy back. When the "
        f"second backward pass ends: {'; '.join(told)}. In the last one the update of the first step runs below the "
        "second step's passes, which therefore still have the old weights."
    )
    return Picture(figure, caption=caption, alt=alt)


def _spans(bars: list[Bar]) -> Iterator[tuple[int, float, float, int]]:
    """(step, start, end, row) of each work of each step."""
    for work in ROWS:
        for step in {bar.step for bar in bars}:
            own = [bar for bar in bars if bar.work == work and bar.step == step]
            if own:
                yield step, min(bar.start for bar in own), max(bar.end for bar in own), ROWS[work]


# ---- a delay's price and gain ---------------------------------------------------------------------------------------


def losses_by_step_and_second(
    runs: Mapping[str, Sequence[Sequence[float]]], late_from: Mapping[str, int], seconds: Sequence[float], level: float,
    *, caption: str,
) -> Picture:  # fmt: skip
    """Losses of several seeds, over steps and over seconds: a line for the mean, and a band from the lowest to the
    highest seed.

    Args:
        runs: name → for each seed the mean loss of every 20 steps in a row.
        late_from: name → the number of the first late step.
        seconds: those of an ordinary step, and of a late one.
        level: the entropy of letters, a dotted line.
    """
    figure, (left, right) = new_figure(columns=2, height=3.3)
    told = []
    for index, (name, losses) in enumerate(runs.items()):
        values = np.asarray(losses)
        steps, look = np.arange(19, 19 + values.shape[1]), line_look(index)  # a mean stands where its last step is
        took = np.where(np.arange(steps[-1]) < late_from[name], *seconds)
        for axes, times in ((left, steps), (right, np.append(0, np.cumsum(took))[steps])):
            axes.plot(times, values.mean(0), lw=1.8, label=name, **look)
            axes.fill_between(times, values.min(0), values.max(0), color=look["color"], alpha=0.18, lw=0)
        told.append(f"{name}: {values[:, -1].mean():.2f} (from {values[:, -1].min():.2f} to {values[:, -1].max():.2f})")
    for axes, words in ((left, "step"), (right, "seconds, the processor as slow as the card")):
        axes.axhline(level, color=INK, lw=1.1, ls=":")
        axes.set(xlabel=words, xlim=(0, None))
    note(left, "letters alone", (left.get_xlim()[1], level), (-3, 3), ha="right", va="bottom", size=9)
    left.set_ylabel("loss (nats per token)")
    legend(figure, "lower center", len(runs), handles=left.get_legend_handles_labels()[0])
    end = f"the loss at the end, mean, lowest and highest of {len(next(iter(runs.values())))} seeds: {'; '.join(told)}"
    return Picture(figure, caption=caption, alt=f"Two panels, over steps and over seconds; {end}.")


# ---- how full the tiers are -----------------------------------------------------------------------------------------


def fill_of_tiers(
    accounts: Mapping[str, MemoryAccount], capacities: Mapping[str, Bytes], seconds: Mapping[str, Seconds], *,
    caption: str, alt: str,
) -> Picture:  # fmt: skip
    """Bars of the tiers on the left, in shares of their sizes; on the right the seconds of a step.

    Args:
        accounts: tier → bytes that lie there.
        capacities: tier → its size.
        seconds: resource → seconds of a step, the card first.
    """
    figure, (left, right) = new_figure(columns=2, height=2.6)
    shares = {tier: account.total / capacities[tier] for tier, account in accounts.items()}
    for row, (tier, account) in enumerate(accounts.items()):
        start = 0.0
        for category in CATEGORIES:
            share = account[category] / capacities[tier]
            left.barh([row], [share], left=start, height=0.55, color=PALETTE[category])
            start += share
        if shares[tier] > 1:
            note(left, "too much", (0, row), (4, 14), va="bottom", weight="bold")
    left.axvline(1, color=INK, lw=1.2, ls="--")
    told = [f"{tier}\n{each.total.to('GiB'):,.1f} of {capacities[tier]:.1GiB}" for tier, each in accounts.items()]
    left.set_yticks(range(len(accounts)), told)
    left.set(xlim=(0, min(2.0, max(1.1, *shares.values()))), ylim=(len(accounts) - 0.5, -0.65))
    left.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    left.set_xlabel("of what the tier holds")
    for road, taken in seconds.items():
        right.barh([road], [taken], height=0.55, color=INK if road == "card" else SERIES[1])
        note(right, f"{float(taken):.2f} s", (taken, road), (5, 0), va="center", color=INK if taken else MUTED)
    right.set(xlim=(0, 1.25 * max(seconds.values())), ylim=(len(seconds) - 0.4, -0.6))
    right.set_xlabel("seconds of a step")
    for axes in (left, right):
        axes.grid(False, axis="y")
    for name, category in zip(("weights", "gradients", "optimizer", "checkpoints", "passing through"), CATEGORIES):
        left.barh([0], [0], color=PALETTE[category], label=name)
    legend(figure, "lower center", 5)
    return Picture(figure, caption=caption, alt=alt)
