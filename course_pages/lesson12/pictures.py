"""Pictures of a grid of ranks: which of them form a group along each axis, and which share a machine."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course_kit.notebook.picture import GRID, INK, MUTED, SERIES, Picture, legend, new_figure, series_color
from course_lib.parallel.mesh import Mesh

_STEPS = ((1.0, 0.0), (0.0, -1.0), (0.52, 0.42))
"""Steps on paper to the next rank along the fastest axis, the middle one, the slowest."""
AXIS_COLORS = {"tensor": SERIES[1], "data": SERIES[7], "pipeline": SERIES[3]}
"""Axis → colour of the axis and its messages in every picture of the lesson: vermilion, indigo, purple."""
_MOST = 4
_IN_A_ROW = 4
"""Machines that stand side by side."""


def groups_along(mesh: Mesh, *, caption: str, ranks_per_node: int | None = None) -> Picture:
    """Pictures of all ranks, one for each axis of a mesh, with a line through the ranks of each group.

    Args:
        mesh: a mesh of three axes, at most 4 ranks along each.
        ranks_per_node: if given, ranks of one machine stand on one grey plate (whole layers of the slowest axis).

    Raises:
        ValueError: another number of axes, too many ranks, or machines that are not whole layers.
    """
    if len(mesh.axes) != 3 or max(mesh.axes.values()) > _MOST:
        raise ValueError(f"{dict(mesh.axes)}: the picture shows three axes of 1 to {_MOST} ranks")
    layer = mesh.size // next(iter(mesh.axes.values()))
    if ranks_per_node not in (None, layer):
        raise ValueError(f"ranks_per_node={ranks_per_node}: a layer of this mesh has {layer} ranks")
    figure, panels = new_figure(1, 3, height=2.5)
    told = []
    for axes, axis in zip(panels, reversed(list(mesh.axes)), strict=True):
        axes.set_axis_off()
        axes.grid(False)
        axes.set_title(f"along {axis}", size=10, color=INK)
        places = {rank: _place(mesh, mesh.coordinates(rank)) for rank in range(mesh.size)}
        for first in range(0, mesh.size, ranks_per_node or mesh.size) if ranks_per_node else ():
            _plate(axes, [places[rank] for rank in range(first, first + layer)])
        _groups(axes, mesh.groups(axis), places)
        axes.set_aspect("equal")
        axes.margins(0.14)
        told.append(f"along {axis}: {', '.join('-'.join(map(str, ranks)) for ranks in mesh.groups(axis))}")
    return Picture(figure, caption=caption, alt=f"{mesh.size} ranks in a cube. Groups {'; '.join(told)}.")


def in_machines(
    mesh: Mesh, ranks_per_node: int, rank: int, colors: Mapping[str, str], title: str = "",
    words: Mapping[str, str] | None = None, *, caption: str, alt: str,
) -> Picture:  # fmt: skip
    """A box for each machine, with its ranks; one rank is marked, and its peers along each axis.

    Args:
        mesh: the mesh of the ranks.
        ranks_per_node: ranks in each machine, a divisor of the mesh's size.
        rank: the marked rank, in ink.
        colors: axis → colour of the peers along it.
        title: text above all machines.
        words: axis → text behind its name, such as the seconds of its messages.
    """
    machines = mesh.size // ranks_per_node
    rows = -(-machines // _IN_A_ROW)
    figure, (axes,) = new_figure(height=(0.85 if title else 0.45) + 0.36 * rows * (1.4 + ranks_per_node / 4))
    met = {other: color for axis, color in colors.items() for other in mesh.group_of(rank, axis)}
    for machine in range(machines):
        x, y = machine % _IN_A_ROW * 5.0, -(machine // _IN_A_ROW) * (1.4 + ranks_per_node / 4)
        places = [(x + place % 4, y - place // 4) for place in range(ranks_per_node)]
        _plate(axes, places, edge=0.5)
        axes.text(x - 0.45, y + 0.62, f"machine {machine}", size=9, color=MUTED)
        for each, place in enumerate(places, machine * ranks_per_node):
            color = INK if each == rank else met.get(each, "white")
            axes.scatter(*place, s=230, color=color, edgecolors=MUTED, linewidths=0.6, zorder=2)
            ink = "white" if each in met else INK
            axes.text(*place, str(each), ha="center", va="center", color=ink, size=8.5, zorder=3)
    for axis, color in colors.items():
        axes.scatter([], [], color=color, s=60, label=f"along {axis}" + (f": {words[axis]}" if words else ""))
    axes.set_title(title, loc="left", fontsize=10, pad=14)
    axes.set_axis_off()
    axes.grid(False)
    axes.set_aspect("equal")
    legend(figure, "lower center", len(colors), fontsize=9)
    return Picture(figure, caption=caption, alt=alt)


def _place(mesh: Mesh, coordinates: Mapping[str, int]) -> tuple[float, float]:
    fast_first = [coordinates[axis] for axis in reversed(list(mesh.axes))]
    return tuple(sum(n * step[i] for n, step in zip(fast_first, _STEPS)) for i in (0, 1))  # type: ignore[return-value]


def _plate(axes: Axes, corners: list[tuple[float, float]], edge: float = 0.27) -> None:
    """A plate behind the ranks of one machine."""
    (left, right), (low, high) = ((min(c), max(c)) for c in zip(*corners))
    size = right - left + 2 * edge, high - low + 2 * edge
    axes.add_patch(Rectangle((left - edge, low - edge), *size, facecolor=GRID, alpha=0.55, edgecolor="none", zorder=0))


def _groups(axes: Axes, groups: list[list[int]], places: Mapping[int, tuple[float, float]]) -> None:
    for number, ranks in enumerate(groups):
        color = series_color(number)
        axes.plot(*zip(*(places[rank] for rank in ranks)), color=color, linewidth=3, zorder=1)
        for rank in ranks:
            axes.scatter(*places[rank], s=270, color=color, zorder=2)
            axes.text(*places[rank], str(rank), ha="center", va="center", color="white", size=9.5, zorder=3)
