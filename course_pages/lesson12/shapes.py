"""Ten ways to lay 8 ranks out along (pipeline, data, tensor): predicted and measured costs of each, in one table."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from course_kit.accounts import TrafficAccount
from course_kit.tables import Tabular
from course_kit.units import Bytes, Ratio
from course_lib.parallel.hybrid import AXES
from course_lib.parallel.mesh import Mesh
from course_lib.pipeline.schedule import Span, gantt_of
from course_pages.shared.who_sends import matrix

Shape = tuple[int, int, int]
"""Ranks along pipeline, data and tensor."""
SHAPES: list[Shape] = [(p, d, t) for p, d, t in itertools.product((1, 2, 4, 8), repeat=3) if p * d * t == 8]


class Numbers(NamedTuple):
    """The costs of a shape."""

    sent: dict[str, Bytes]  # axis of more than one rank → bytes that rank 0 sends along it in a step
    held: Bytes  # bytes that rank 0 holds at most: states and activations in flight
    bubble: Ratio  # idle time of a pipeline's ranks over all their time

    @property
    def kinds(self) -> dict[str, Any]:
        """The numbers by name; idle time only where there is a bubble."""
        along = {f"along {axis}": sent for axis, sent in self.sent.items()}
        return {**along, "held": self.held, **({"idle": self.bubble} if self.bubble else {})}

    @property
    def sent_in_all(self) -> Bytes:
        """Bytes along all axes together."""
        return sum(self.sent.values(), Bytes(0))


class Met(NamedTuple):
    """Readings of three meters on a rank: bytes sent, bytes held, the pipeline's spans; and the losses of two steps."""

    sent: TrafficAccount
    held: Bytes
    spans: list[Span]
    losses: list[float]


def mesh_of(shape: Shape) -> Mesh:
    """The mesh of a shape, tensor fastest."""
    return Mesh(dict(zip(AXES, shape)))


def name_of(shape: Shape) -> str:
    """A shape in print: 2·2·2."""
    return "·".join(map(str, shape))


def numbers_of(shape: Shape, met: list[Met]) -> Numbers:
    """Bytes that the kernel saw leave rank 0 along each axis, bytes that rank 0 held, idle time of a pipeline's ranks.

    In a mesh each pair of ranks that talk belongs to one axis, so a connection tells its axis. Of several pipelines the
    median counts.
    """
    mesh, seen = mesh_of(shape), matrix([each.sent for each in met], observed=True)[0]
    sent = {
        axis: sum((seen[rank] for rank in mesh.group_of(0, axis)), Bytes(0)) for axis in AXES if mesh.axes[axis] > 1
    }
    charts = [gantt_of(name_of(shape), [met[rank].spans for rank in group]) for group in mesh.groups("pipeline")]
    waits = statistics.median(chart.bubble for chart in charts) if shape[0] > 1 else 0.0
    return Numbers(sent, met[0].held, Ratio(waits))


def furthest(met: list[Met], alone: list[float]) -> float:
    """The largest difference of a loss, on any rank, to one device's."""
    return max(abs(ours - theirs) for each in met for ours, theirs in zip(each.losses, alone, strict=True))


class ShapesTable(Tabular):
    """A row for each shape; in each cell the measured number and, behind a slash, the formula's.

    Args:
        formula, measured: shape → its numbers.
        off: shape → difference of the loss to one device's.
    """

    def __init__(
        self, formula: Mapping[Shape, Numbers], measured: Mapping[Shape, Numbers], off: Mapping[Shape, float]
    ) -> None:
        self.formula, self.measured, self.off = formula, measured, off

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        head = ("shape", *(f"kB along {axis}" for axis in AXES), "MB held", "idle", "loss off by")
        return head, [self._row(shape) for shape in self.measured]

    def _row(self, shape: Shape) -> tuple[str, ...]:
        due, came = self.formula[shape], self.measured[shape]
        sent = (f"{came.sent[a] / 1e3:,.0f} / {due.sent[a] / 1e3:,.0f}" if a in due.sent else "–" for a in AXES)
        held, idle = f"{came.held / 1e6:.2f} / {due.held / 1e6:.2f}", f"{came.bubble:.0%} / {due.bubble:.0%}"
        return name_of(shape), *sent, held, idle if due.bubble else "–", f"{self.off[shape]:.0e}"


def furthest_off(formula: Mapping[Shape, Numbers], measured: Mapping[Shape, Numbers]) -> dict[str, Shape]:
    """Kind of number ("along pipeline", "held", "idle", …) → the shape whose measurement is furthest off."""
    kinds = {kind for each in formula.values() for kind in each.kinds}

    def off(shape: Shape, kind: str) -> float:
        return abs(measured[shape].kinds[kind] / formula[shape].kinds[kind] - 1)

    return {
        kind: max((shape for shape in formula if kind in formula[shape].kinds), key=lambda shape: off(shape, kind))
        for kind in sorted(kinds)
    }
