"""Pictures of data parallelism: buckets behind a backward pass, the gain of a larger batch, real ranks over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course_kit.measure.timeline import Event, Kind, RankTimeline
from course_kit.notebook.picture import INK, MUTED, PALETTE, SERIES, Picture, legend, new_figure, note
from course_kit.units import Bytes
from course_lib.predict.overlap import Overlap
from course_lib.predict.scaling import steps_and_examples

COMPUTING, HIDDEN, SEEN = SERIES[5], "#7A7A7A", SERIES[1]
"""Colours of the backward pass, of sending behind it, of sending that ranks wait for."""


def bucket_overlap(now: Overlap, sizes: Mapping[Bytes, Overlap], chosen: Bytes, *, caption: str, alt: str) -> Picture:
    """Two pictures: the buckets of one backward pass over time, and the time to the end for every bucket size.

    Args:
        now: the buckets that are drawn over time.
        sizes: bucket size → buckets of this size on the link.
        chosen: the size of `now`, marked among `sizes`.
    """
    figure, (times, ends) = new_figure(rows=2, height=4.2)
    end_ms, backward_ms = 1e3 * now.end_s, 1e3 * now.backward_s
    times.broken_barh([(0, backward_ms)], (0.6, 0.8), facecolor=COMPUTING, edgecolor="white")
    for each in now.departures:
        _bucket(times, 1e3 * each.start_s, 1e3 * each.end_s, backward_ms)
    times.plot([1e3 * each.full_s for each in now.departures], [1.5] * len(now.departures), "|", color=INK, ms=5)
    times.axvline(backward_ms, color=INK, lw=1, ls="--")
    times.set(xlim=(0, 1.01 * end_ms), ylim=(2.6, 0.4), xlabel="ms since the backward pass began")
    times.set_yticks([1.0, 1.5, 2.1], ["computes", "bucket is full", "on the link"])
    times.grid(False, axis="y")
    _ends(ends, sizes, chosen)
    return Picture(figure, caption=caption, alt=alt)


def _bucket(axes: Axes, start: float, end: float, backward: float) -> None:
    """A bucket on the link, in two colours where it goes on behind the backward pass."""
    for left, right, color in ((start, min(end, backward), HIDDEN), (max(start, backward), end, SEEN)):
        if left < right:
            axes.broken_barh([(left, right - left)], (1.7, 0.8), facecolor=color, edgecolor="white", lw=0.4)


def _ends(axes: Axes, sizes: Mapping[Bytes, Overlap], chosen: Bytes) -> None:
    places = range(len(sizes))
    for place, (size, each) in zip(places, sizes.items()):
        waiting = {"facecolor": SEEN, "alpha": 1.0 if size == chosen else 0.45}
        axes.bar(place, 1e3 * each.backward_s, width=0.8, color=COMPUTING, alpha=1.0 if size == chosen else 0.45)
        axes.bar(place, 1e3 * each.waiting_s, width=0.8, bottom=1e3 * each.backward_s, **waiting)
    axes.set(xlim=(-0.6, len(sizes) - 0.4), xlabel="bytes that close a bucket", ylabel="ms to the end")
    axes.set_xticks([*places][::3], [f"{size:.0}" for size in [*sizes][::3]])
    axes.grid(False, axis="x")


def steps_and_examples_by_batch(critical: float, *, caption: str) -> Picture:
    """Steps and examples of a run against its batch size, both over the fewest possible; `critical` is in tokens."""
    figure, (axes,) = new_figure(height=3.2)
    sizes = [critical * 10 ** (place / 10) for place in range(-20, 21)]
    both = [steps_and_examples(size, critical) for size in sizes]
    lines = {"steps (time)": ([s for s, _ in both], "-"), "examples (cost)": ([e for _, e in both], "--")}
    for (label, (values, style)), color in zip(lines.items(), (PALETTE["predicted"], PALETTE["measured"])):
        axes.plot(sizes, values, style, label=label, color=color, lw=1.8)
    axes.axvline(critical, color=MUTED, lw=1, ls=":")
    note(axes, "critical batch size", (critical, 60), (5, 0))
    axes.set(xscale="log", yscale="log", xlabel="batch size (tokens)", ylabel="over the fewest possible")
    axes.legend(frameon=False, loc="center left")
    alt = (
        f"Two curves against the batch size from {critical / 100:,.3g} to {critical * 100:,.3g} tokens, both axes "
        f"logarithmic. Steps fall from 101 times the fewest to 1.01, examples rise from 1.01 to 101 times. They cross "
        f"at {critical:,.3g}, where both are 2."
    )
    return Picture(figure, caption=caption, alt=alt)


_LOOKS: dict[Kind, dict[str, Any]] = {
    "compute": {"facecolor": SERIES[5], "edgecolor": "white", "linewidth": 0.5},
    "wait": {"facecolor": "white", "edgecolor": MUTED, "linewidth": 0.5, "hatch": "////"},
    "send": {"facecolor": SERIES[1], "edgecolor": "white", "linewidth": 0.5},
}
"""Light blue for computing, under names that stay legible; striped white for waiting; vermilion for sending."""
_ROWS: dict[Kind, tuple[float, float]] = {"compute": (-0.36, 0.44), "wait": (-0.36, 0.44), "send": (0.12, 0.2)}
_LABELS: dict[Kind, str] = {"compute": "computes", "wait": "waits", "send": "communication under way"}


def rank_timeline(record: RankTimeline, *, caption: str, alt: str) -> Picture:
    """The record of `measure.timeline`: a row for each rank, and its communication as a thin bar below.

    Raises:
        ValueError: nothing was recorded.
    """
    if not record.events:
        raise ValueError("this timeline is empty: draw it after its `with` block, from what a rank returned")
    ranks = sorted({event.rank for event in record.events})
    figure, (axes,) = new_figure(height=1.1 + 0.55 * len(ranks))
    end_s = max(event.end_s for event in record.events)
    for event in record.events:
        _bar(axes, event, wide_enough_s=0.012 * end_s)
    axes.set(xlim=(0, 1e3 * end_s), ylim=(max(ranks) + 0.5, min(ranks) - 0.5), xlabel="time (ms)")
    axes.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    shown: list[Kind] = [kind for kind in _LABELS if any(event.kind == kind for event in record.events)]
    handles = [Patch(label=_LABELS[kind], **_LOOKS[kind]) for kind in shown]
    legend(figure, "upper right", len(handles), handles=handles, fontsize=9.5)
    return Picture(figure, caption=caption, alt=alt)


def _bar(axes: Axes, event: Event, wide_enough_s: float) -> None:
    """One event; its name goes inside where it fits (a letter is about 1.2 % of the figure's width)."""
    offset, height = _ROWS[event.kind]
    start, width = 1e3 * event.start_s, 1e3 * (event.end_s - event.start_s)
    axes.broken_barh([(start, width)], (event.rank + offset, height), **_LOOKS[event.kind])
    fits = event.end_s - event.start_s > wide_enough_s * (len(event.name) + 1)
    if event.kind == "compute" and event.name != "compute" and fits:
        middle = event.rank + offset + height / 2
        axes.text(start + width / 2, middle, event.name, ha="center", va="center", fontsize=8.5, color=INK)
