"""Pictures of steps: a cube's over time, bytes held against bytes sent for ten shapes, parts of a published step."""

from __future__ import annotations

from collections.abc import Mapping

from course_kit.measure.timeline import Event, RankTimeline
from course_kit.notebook.picture import MUTED, PALETTE, SERIES, Picture, legend, new_figure, note
from course_kit.units import Seconds
from course_pages.lesson12.pictures import AXIS_COLORS
from course_pages.lesson12.shapes import Numbers, Shape, name_of

COLORS = {
    "forward": SERIES[5],
    "backward": SERIES[2],
    **{f"along {axis}": color for axis, color in AXIS_COLORS.items()},
    "update": SERIES[4],
}
"""Passes light blue and green, the update orange; a message that a rank waits for has the colour of its axis."""
REST = "#C9CED4"
_OFFSETS = {(2, 2, 2): (-8, -16), (1, 4, 2): (-12, 11)}  # these names would cover their neighbours to the right


def look_of(event: Event) -> str | None:
    """The entry of `COLORS` for an event of a rank's own thread; None for an event that is not drawn."""
    if event.kind == "send":
        return None
    return next((name for name in COLORS if event.name.endswith(name)), None)


def cube_step(record: RankTimeline, *, caption: str) -> Picture:
    """A row for each rank of a `recorded_step`: passes, the update, and messages for which it waits, by their axis."""
    ranks = range(record.world_size)
    figure, (axes,) = new_figure(height=1.1 + 0.36 * len(ranks))
    spent = dict.fromkeys(COLORS, 0.0)
    for event in record.events:
        if look := look_of(event):
            start_ms, took_ms = 1e3 * event.start_s, 1e3 * (event.end_s - event.start_s)
            axes.broken_barh([(start_ms, took_ms)], (event.rank - 0.4, 0.8), facecolor=COLORS[look], edgecolor="none")
            spent[look] += took_ms / len(ranks)
    end = 1.01e3 * max(event.end_s for event in record.events)
    axes.set(xlim=(0, end), ylim=(len(ranks) - 0.5, -0.5), xlabel="time since the step began (ms)")
    axes.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    words = {name: f"waits {name}" if name.startswith("along") else name for name in COLORS}
    legend(figure, "lower center", 3, {words[name]: color for name, color in COLORS.items()}, fontsize=9)
    told = "; ".join(f"{words[name]} {ms:.0f} ms" for name, ms in spent.items())
    return Picture(figure, caption=caption, alt=f"{len(ranks)} ranks as rows over time; on average of a rank: {told}.")


def trade(formula: Mapping[Shape, Numbers], measured: Mapping[Shape, Numbers], *, caption: str) -> Picture:
    """Bytes held against bytes sent, both of rank 0, a dot for each shape and a ring where its formula is.

    The redder a dot, the larger its bubble; the name is ranks along pipeline × data × tensor.
    """
    figure, (axes,) = new_figure(height=3.9)
    told = []
    for shape, found in measured.items():
        axes.scatter(found.sent_in_all / 1e6, found.held / 1e6, s=70, color=_shade(found.bubble), zorder=3)
        due = formula[shape]
        axes.scatter(due.sent_in_all / 1e6, due.held / 1e6, s=170, facecolors="none", edgecolors=MUTED, zorder=2)
        idle = f", {due.bubble:.0%} idle" if due.bubble else ""
        place = (found.sent_in_all / 1e6, found.held / 1e6)
        note(axes, f"{name_of(shape)}{idle}", place, _OFFSETS.get(shape, (9, 4)), size=9)
        held = f"holds {found.held:.1MB}, {found.bubble:.0%} idle"
        told.append(f"{name_of(shape)} sends {found.sent_in_all:.2MB}, {held}")
    axes.set(xscale="log", yscale="log", xlabel="MB that rank 0 sends in a step", ylabel="MB that it holds at most")
    axes.margins(x=0.2, y=0.12)
    for side in (axes.xaxis, axes.yaxis):
        side.set_major_formatter(lambda value, _: f"{value:g}")
        side.set_minor_formatter(lambda value, _: "")
    axes.set_xticks([0.2, 0.5, 1, 2, 5, 10])
    axes.set_yticks([3, 4, 5, 6, 8])
    axes.set_ylim(3.2, 9.5)
    return Picture(figure, caption=caption, alt=f"Ten dots on logarithmic axes: {'; '.join(told)}.")


def _shade(bubble: float) -> tuple[float, float, float]:
    """A colour from blue, without a bubble, to vermilion."""
    blue, red = (0.0, 0.447, 0.698), (0.835, 0.369, 0.0)
    return tuple(a + (b - a) * min(1.0, bubble) for a, b in zip(blue, red))  # type: ignore[return-value]


def budget(parts: Mapping[str, Seconds], *, caption: str) -> Picture:
    """One bar, cut into at most six parts of a step, whose seconds stand in the legend."""
    figure, (axes,) = new_figure(height=2.1)
    colors = [PALETTE["predicted"], SERIES[6], *(AXIS_COLORS[axis] for axis in ("tensor", "pipeline", "data")), REST]
    left, keys = 0.0, {}
    for (name, seconds), color in zip(parts.items(), colors):
        axes.barh(0, seconds, left=left, height=0.5, color=color, edgecolor="white", lw=0.8)
        left += seconds
        keys[f"{name}: {seconds:.1s}"] = color
    axes.set(ylim=(-0.45, 0.45), xlim=(0, left), xlabel="seconds of a step")
    axes.set_yticks([])
    axes.grid(False)
    legend(figure, "lower center", 3, keys, fontsize=9)
    told = ", ".join(f"{name} {seconds:.1s}" for name, seconds in parts.items())
    return Picture(figure, caption=caption, alt=f"One bar of {left:.1f} seconds, from left to right: {told}.")
