"""Pictures of data parallelism: buckets behind a backward pass, and what a larger batch still buys."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from course_kit.notebook.picture import INK, MUTED, PALETTE, SERIES, Picture, new_figure, note
from course_kit.units import Bytes
from course_lib.predict.overlap import Overlap
from course_lib.predict.scaling import steps_and_examples

COMPUTING, HIDDEN, SEEN = SERIES[5], "#7A7A7A", SERIES[1]
"""The backward pass; sending behind it; sending that everybody waits for."""


def bucket_overlap(now: Overlap, sizes: Mapping[Bytes, Overlap], chosen: Bytes, *, caption: str, alt: str) -> Picture:
    """Two pictures: the buckets of one backward pass over time, and the time to the end for every bucket size.

    Args:
        now: what is drawn over time.
        sizes: bucket size → what it leads to.
        chosen: the size of `now`, marked among `sizes`.
        caption: what the reader should see.
        alt: the figure in words.
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
    if start < backward:
        axes.broken_barh([(start, min(end, backward) - start)], (1.7, 0.8), facecolor=HIDDEN, edgecolor="white", lw=0.4)
    if end > backward:
        start = max(start, backward)
        axes.broken_barh([(start, end - start)], (1.7, 0.8), facecolor=SEEN, edgecolor="white", lw=0.4)


def _ends(axes: Axes, sizes: Mapping[Bytes, Overlap], chosen: Bytes) -> None:
    places = range(len(sizes))
    for place, (size, each) in zip(places, sizes.items()):
        waiting = {"facecolor": SEEN, "alpha": 1.0 if size == chosen else 0.45}
        axes.bar(place, 1e3 * each.backward_s, width=0.8, color=COMPUTING, alpha=1.0 if size == chosen else 0.45)
        axes.bar(place, 1e3 * each.waiting_s, width=0.8, bottom=1e3 * each.backward_s, **waiting)
    axes.set(xlim=(-0.6, len(sizes) - 0.4), xlabel="bytes that close a bucket", ylabel="ms to the end")
    axes.set_xticks([*places][::3], [f"{size:.0}" for size in [*sizes][::3]])
    axes.grid(False, axis="x")


def steps_and_examples_by_batch(critical: float, unit: str = "tokens", *, caption: str) -> Picture:
    """Steps and examples of a run against its batch size, both over the fewest possible.

    Args:
        critical: the critical batch size.
        unit: of what.
        caption: what the reader should see.
    """
    figure, (axes,) = new_figure(height=3.2)
    sizes = [critical * 10 ** (place / 10) for place in range(-20, 21)]
    both = [steps_and_examples(size, critical) for size in sizes]
    lines = {"steps (time)": ([s for s, _ in both], "-"), "examples (cost)": ([e for _, e in both], "--")}
    for (label, (values, style)), color in zip(lines.items(), (PALETTE["predicted"], PALETTE["measured"])):
        axes.plot(sizes, values, style, label=label, color=color, lw=1.8)
    axes.axvline(critical, color=MUTED, lw=1, ls=":")
    note(axes, "critical batch size", (critical, 60), (5, 0))
    axes.set(xscale="log", yscale="log", xlabel=f"batch size ({unit})", ylabel="over the fewest possible")
    axes.legend(frameon=False, loc="center left")
    alt = (
        f"Two curves against the batch size from {critical / 100:,.3g} to {critical * 100:,.3g} {unit}, both axes "
        f"logarithmic. Steps fall from 101 times the fewest to 1.01, examples rise from 1.01 to 101 times. They cross "
        f"at {critical:,.3g}, where both are 2."
    )
    return Picture(figure, caption=caption, alt=alt)
