"""Gantt charts of pipelines: the actions of each rank over time, simulated and measured, one below the other."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from course_kit.notebook.picture import INK, SERIES, Picture, legend, new_figure
from course_lib.pipeline.schedule import Gantt, Kind, Span

COLORS: dict[Kind, str] = {"F": SERIES[5], "BW": SERIES[2], "B": SERIES[3], "W": SERIES[4], "U": SERIES[6]}
"""Light blue for forward, a whole backward pass green; its halves purple (input's gradient) and orange (weights')."""
LABELS: dict[Kind, str] = {
    "F": "forward",
    "BW": "backward",
    "B": "B: the input's gradient",
    "W": "W: the weights' gradients",
    "U": "update",
}


def pipeline_charts(
    charts: Mapping[str, Gantt], unit: str = "ms", units_of_time: float = 1e3, *, caption: str, alt: str = ""
) -> Picture:
    """A chart for each schedule or run, with a row for each rank, all on one scale of time.

    Idle time is white. The number on a bar is its micro-batch. Where a rank holds several stages, all but the one
    that has its number are hatched.

    Args:
        charts: title → the chart.
        unit: label of the time axis.
        units_of_time: one unit of the charts' time, in `unit` (charts in seconds, drawn in ms: 1,000).
        alt: the figure in words; the charts' numbers if empty.

    Raises:
        ValueError: there is no chart.
    """
    if not charts:
        raise ValueError("no chart given: pipeline_charts needs at least one, as {title: simulate(schedule)}")
    rows = sum(len(chart.spans) for chart in charts.values())
    figure, many = new_figure(rows=len(charts), height=0.75 + 0.62 * len(charts) + 0.27 * rows)
    end = max(chart.makespan for chart in charts.values()) * units_of_time
    told = []
    for axes, (title, chart) in zip(many, charts.items()):
        axes.set_title(f"{title}: {chart.bubble:.0%} idle", loc="left", fontsize=10)
        _draw(axes, chart, units_of_time, end)
        idle = ", ".join(f"{chart.idle(rank) / chart.makespan:.0%}" for rank in range(len(chart.spans)))
        done = f"{len(chart.spans)} ranks as rows, done after {round(chart.makespan * units_of_time, 1):g} {unit}"
        told.append(f"{title}: {done}; idle are {idle} of the time, from rank 0 on.")
    many[-1].set_xlabel(f"time ({unit})")
    shown: list[Kind] = [kind for kind in COLORS if any(_has(chart, kind) for chart in charts.values())]
    legend(figure, "lower right", len(shown), {LABELS[kind]: COLORS[kind] for kind in shown}, fontsize=9)
    return Picture(figure, caption=caption, alt=alt or " ".join(told))


def _draw(axes: Axes, chart: Gantt, units_of_time: float, end: float) -> None:
    ranks = range(len(chart.spans))
    for rank, spans in enumerate(chart.spans):
        for span in spans:
            _bar(axes, rank, span, units_of_time, end, is_other=span.action.stage != rank)
    axes.set(xlim=(0, 1.005 * end), ylim=(len(ranks) - 0.5, -0.5))
    axes.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def _bar(axes: Axes, rank: int, span: Span, units_of_time: float, end: float, is_other: bool) -> None:
    """One action; its micro-batch goes inside where it fits (a digit is about 1.2 % of the figure's width)."""
    color, number = COLORS[span.action.kind], str(span.action.micro_batch)
    left, width = span.start * units_of_time, (span.end - span.start) * units_of_time
    look = {"facecolor": color, "edgecolor": "white", "lw": 0.6, "hatch": "////" if is_other else None}
    axes.broken_barh([(left, width)], (rank - 0.42, 0.84), **look)
    if width > 0.012 * end * len(number):
        box = {"facecolor": color, "edgecolor": "none", "pad": 0.5} if is_other else None
        axes.text(left + width / 2, rank, number, ha="center", va="center", fontsize=8, color=INK, bbox=box)


def _has(chart: Gantt, kind: Kind) -> bool:
    """Find out whether the chart has a bar of this kind that is wide enough to be seen."""
    bars = (span for spans in chart.spans for span in spans if span.action.kind == kind)
    return any(span.end - span.start > 0.002 * chart.makespan for span in bars)
