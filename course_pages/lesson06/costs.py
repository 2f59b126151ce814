"""Pictures of the costs of collectives: bytes, messages and seconds, against the number of ranks and against size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from course_kit.notebook.picture import Picture, legend, new_figure, series_color
from course_lib.collectives import schedules
from course_lib.predict.traffic import Link, all_reduce, crossover_bytes

MARKERS = {"direct": "s", "manager": "^", "ring": "o", "tree": "D"}
"""Every all-reduce keeps its marker and, in this order, its colour."""
_LINES = ("-", "--", "-", "-.")


def busiest_ranks(counted: Mapping[int, Sequence[Mapping[str, tuple[int, int]]]], *, caption: str) -> Picture:
    """Bytes and messages of the busiest rank against the number of ranks.

    Args:
        counted: world size → one mapping for each rank: algorithm → (bytes, messages) that it sent.
    """
    names = list(next(iter(counted.values()))[0])
    most = [{n: {p: max(mine[n][i] for mine in counted[p]) for p in counted} for n in names} for i in (0, 1)]
    megabytes = {name: {p: n_bytes / 1e6 for p, n_bytes in row.items()} for name, row in most[0].items()}
    last = max(counted)
    ends = "; ".join(f"{name} {megabytes[name][last]:.3g} MB in {most[1][name][last]} messages" for name in names)
    return by_world_size(
        {"MB of the busiest rank": megabytes, "messages of the busiest rank": most[1]},
        caption=caption,
        alt=f"Two plots from {min(counted)} to {last} ranks. At {last}: {ends}. The ring's bytes hardly grow, direct's "
        "and manager's grow in a line, the tree's in steps; of the messages, the ring's grow fastest.",
    )


def fitted_link(link: Link, measured: Mapping[int, float], name: str = "one message", *, caption: str) -> Picture:
    """Measured times of one message (or of the operation `name`), {bytes: seconds}, and the fitted `link`."""
    smallest, largest = min(measured), max(measured)
    sizes = [smallest * 2**k for k in range((largest // smallest).bit_length())]  # denser than the points: a curve
    return times_by_size(
        {name: {n_bytes: link.seconds((1, n_bytes)) for n_bytes in sizes}},
        {name: measured},
        caption=caption,
        alt=f"Microseconds of {name} against its bytes, both logarithmic: measured points, and the fitted line, "
        "flat at first and then rising in proportion.",
    )


def predicted_all_reduces(link: Link, world_size: int, sizes: Sequence[int], *, caption: str) -> Picture:
    """The predicted times of the four all-reduces over `link`, against size."""
    meet = crossover_bytes(world_size, link)
    return times_by_size(
        {name: _predicted(link, world_size, sizes, name) for name in schedules.ALL_REDUCE},
        {},
        caption=caption,
        alt=f"Four predicted lines, microseconds against bytes. On the left the tree is lowest, on the right the ring; "
        f"they cross at {meet:.0kB}. The manager is slowest on both sides.",
    )


def measured_all_reduces(
    link: Link, world_size: int, measured: Mapping[str, Mapping[int, float]], *, caption: str
) -> Picture:
    """Measured times, contestant → {bytes: seconds}, as points, and the predictions for `link` as lines."""
    return times_by_size(
        {name: _predicted(link, world_size, list(measured[name]), name) for name in schedules.ALL_REDUCE},
        measured,
        caption=caption,
        alt=f"Microseconds of an all-reduce of {world_size} ranks against bytes: four predicted lines, and measured "
        "points.",
    )


def all_reduces_of_many_ranks(n_bytes: int, link: Link, worlds: Sequence[int], *, caption: str) -> Picture:
    """The predicted times of the four all-reduces against the number of ranks."""
    seconds = {
        name: {p: float(all_reduce(n_bytes, p, name).seconds(link)) for p in worlds} for name in schedules.ALL_REDUCE
    }
    ends = "; ".join(f"{name} from {row[worlds[0]]:.2g} to {row[worlds[-1]]:.2g}" for name, row in seconds.items())
    return by_world_size(
        {"seconds": seconds}, caption=caption,
        alt=f"Predicted seconds against {worlds[0]} to {worlds[-1]} ranks: {ends}.", logarithmic=True,
    )  # fmt: skip


def _predicted(link: Link, world_size: int, sizes: Sequence[int], name: str) -> dict[int, float]:
    return {n_bytes: all_reduce(n_bytes, world_size, name).seconds(link) for n_bytes in sizes}


def by_world_size(
    panels: Mapping[str, Mapping[str, Mapping[int, float]]], *, caption: str, alt: str, logarithmic: bool = False
) -> Picture:
    """A panel for each label → algorithm → {ranks: value}."""
    figure, axes = new_figure(1, len(panels), height=3.0)
    for each, (label, lines) in zip(axes, panels.items(), strict=True):
        for number, (name, points) in enumerate(lines.items()):
            look = {"marker": _marker(name, number), "ms": 5.5, "label": name if each is axes[0] else None}
            each.plot(list(points), list(points.values()), _LINES[number % 4], **look)
        each.set(xlabel="ranks", ylabel=label)
        if logarithmic:
            each.set(xscale="log", yscale="log")
        else:
            each.yaxis.set_major_locator(MaxNLocator(integer=True))
            each.set_ylim(bottom=0)
    legend(figure, "upper right", len(lines), fontsize=9.5)
    return Picture(figure, caption=caption, alt=alt)


def times_by_size(
    lines: Mapping[str, Mapping[int, float]], points: Mapping[str, Mapping[int, float]], *, caption: str, alt: str
) -> Picture:
    """Seconds against bytes, logarithmic: predicted `lines`, measured `points`; name → {bytes: seconds}."""
    figure, (axes,) = new_figure(height=3.6)
    handles = []
    for number, name in enumerate(dict.fromkeys([*lines, *points])):
        color, style, marker = series_color(number), "none", "none"
        if name in lines:
            style = _LINES[number % 4]
            axes.plot(list(lines[name]), [1e6 * s for s in lines[name].values()], style, color=color)
        if name in points:
            marker = _marker(name, number)
            axes.plot(list(points[name]), [1e6 * s for s in points[name].values()], marker, color=color, ms=6)
        handles.append(Line2D([], [], color=color, ls=style, marker=marker, ms=5.5, label=name))  # as it is drawn
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="microseconds")
    legend(figure, "upper right", len(handles), handles=handles, fontsize=9.5)
    return Picture(figure, caption=caption, alt=alt)


def _marker(name: str, number: int) -> str:
    return MARKERS.get(name, "osD^"[number % 4])
