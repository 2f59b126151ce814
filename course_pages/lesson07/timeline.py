"""A Gantt chart of ranks: what each one did when."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course_kit.measure.timeline import Event, Kind, RankTimeline
from course_kit.notebook.picture import INK, MUTED, SERIES, Picture, legend, new_figure

COLORS: dict[Kind, str] = {"compute": SERIES[5], "wait": "#FFFFFF", "send": SERIES[1]}
"""Light blue, so that names can be read on it; white with stripes, since nothing happens; and vermilion."""
_ROWS: dict[Kind, tuple[float, float]] = {"compute": (-0.36, 0.44), "wait": (-0.36, 0.44), "send": (0.12, 0.2)}
_LABELS: dict[Kind, str] = {"compute": "computes", "wait": "waits", "send": "communication under way"}


def rank_timeline(record: RankTimeline, *, caption: str, alt: str) -> Picture:
    """The record as a chart with a row for each rank and the communication as a thin bar below it.

    Args:
        record: what `measure.timeline` recorded.
        caption: what the reader should see.
        alt: the figure in words.

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
    handles = [Patch(label=_LABELS[kind], **_look(kind)) for kind in shown]
    legend(figure, "upper right", len(handles), handles=handles, fontsize=9.5)
    return Picture(figure, caption=caption, alt=alt)


def _look(kind: Kind) -> dict[str, Any]:
    if kind == "wait":
        return {"facecolor": COLORS[kind], "edgecolor": MUTED, "hatch": "////", "linewidth": 0.5}
    return {"facecolor": COLORS[kind], "edgecolor": "white", "linewidth": 0.5}


def _bar(axes: Axes, event: Event, wide_enough_s: float) -> None:
    """One event; its name goes inside where it fits (a letter is about 1.2 % of the figure's width)."""
    offset, height = _ROWS[event.kind]
    start, width = 1e3 * event.start_s, 1e3 * (event.end_s - event.start_s)
    axes.broken_barh([(start, width)], (event.rank + offset, height), **_look(event.kind))
    fits = event.end_s - event.start_s > wide_enough_s * (len(event.name) + 1)
    if event.kind == "compute" and event.name != "compute" and fits:
        middle = event.rank + offset + height / 2
        axes.text(start + width / 2, middle, event.name, ha="center", va="center", fontsize=8.5, color=INK)
