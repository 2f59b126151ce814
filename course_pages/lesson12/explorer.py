"""The cube of ranks: the groups of a rank, those of them that leave their machine, and their seconds in a step.

Move the lengths, the order in which ranks are counted and the size of a machine; look at one rank. Groups are `Mesh`'s,
bytes are `predict.rank_traffic`'s. The table holds both for every place of the controls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import Picture
from course_kit.units import Seconds
from course_lib import predict
from course_lib.model import hardware, zoo
from course_lib.parallel.hybrid import AXES
from course_lib.parallel.mesh import Mesh
from course_lib.predict import Setup
from course_pages.lesson12.pictures import AXIS_COLORS, in_machines

MODELS = {row.name: row for row in (zoo.GPT3_6_7B, zoo.GPT3_13B, zoo.GPT3_175B)}
ORDERS = {", ".join(order): order for order in itertools.permutations(AXES)}
LENGTHS, MACHINES, LOOKED_AT = (2, 4), (4, 8), tuple(range(8))
BATCH = 512
"""Sequences in a step, one in a micro-batch."""
INSIDE = hardware.A100_80GB.link_bytes_per_s
ACROSS = 25 * 10**9
"""Bytes a second to another machine: a network card of 200 Gbit/s for each GPU (Narayanan et al. 2021, §5)."""
REACHED = 150e12
"""FLOP/s that an A100 computes at: Narayanan et al. 2021, Table 1, have 135 to 163 TFLOP/s, of a peak of 312."""


@cache
def sent(model: str, pipeline: int, data: int, tensor: int) -> list[dict[str, int]]:
    """Bytes that a rank of each stage sends in a step, along each axis; gradients in 16 bits."""
    setup = Setup(MODELS[model], BATCH, precision="mixed", micro_batch=1, pipeline=pipeline, data=data, tensor=tensor)
    stages = (predict.rank_traffic(setup, stage) for stage in range(pipeline))
    return [{axis: int(found[axis].total_bytes) for axis in AXES} for found in stages]


@cache
def computing(model: str, pipeline: int, data: int, tensor: int) -> tuple[Seconds, Seconds]:
    """Seconds of a step for which a rank computes, and for which it idles in a pipeline of this length."""
    setup = Setup(MODELS[model], BATCH, micro_batch=1, pipeline=pipeline, data=data)
    busy = predict.step_flops(setup) / (pipeline * data * tensor * REACHED)
    return Seconds(busy), Seconds(busy * predict.bubble(setup).over_ideal)


def mesh_of(order: str, pipeline: int, data: int, tensor: int) -> Mesh:
    """The mesh with its axes in the chosen order."""
    lengths = {"pipeline": pipeline, "data": data, "tensor": tensor}
    return Mesh({axis: lengths[axis] for axis in ORDERS[order]})


def is_torn(group: list[int], machine: int) -> bool:
    """Find out whether a group has ranks in more than one machine."""
    return len({rank // machine for rank in group}) > 1


def seconds(n_bytes: int, torn: bool) -> Seconds:
    """Seconds at the full speed of the slowest link that the group needs."""
    return Seconds(n_bytes / (ACROSS if torn else INSIDE))


@cache
def cube_table() -> dict[str, Any]:
    """Groups and costs at all places; a shape is "pipeline-data-tensor".

    Returns:
        "groups": order → shape → for each rank that can be looked at, axis → ranks of its group; "stage": the same →
        its stage. "sent": model → shape → for each stage, axis → [bytes in words, seconds inside, seconds across].
        "computing": model → shape → [seconds of computing, of waiting in the bubble]. "colors": of the axes.
    """
    shapes = list(itertools.product(LENGTHS, repeat=3))

    def places(names: Iterable[str], of: Callable[..., Any]) -> dict[str, dict[str, Any]]:
        return {name: {"-".join(map(str, shape)): of(name, *shape) for shape in shapes} for name in names}

    def groups(*place: Any) -> list[dict[str, list[int]]]:
        mesh = mesh_of(*place)
        return [{axis: mesh.group_of(rank, axis) for axis in AXES} for rank in LOOKED_AT]

    def stages(*place: Any) -> list[int]:
        mesh = mesh_of(*place)
        return [mesh.coordinates(rank)["pipeline"] for rank in LOOKED_AT]

    return {
        "groups": places(ORDERS, groups),
        "stage": places(ORDERS, stages),
        "sent": places(MODELS, lambda *place: [{axis: _costs(n) for axis, n in at.items()} for at in sent(*place)]),
        "computing": places(MODELS, lambda *place: [round(float(s), 3) for s in computing(*place)]),
        "colors": AXIS_COLORS,
    }


def _costs(n_bytes: int) -> list[Any]:
    return [f"{n_bytes / 1e9:.1f} GB", *(round(float(seconds(n_bytes, torn)), 4) for torn in (False, True))]


class CubeExplorer(Explorer):
    """A grid of 8 to 64 ranks in its machines, and the three groups of one rank.

    Args:
        model: a name in `MODELS`.
        order: of the axes, the slowest first: a key of `ORDERS`.
        pipeline, data, tensor: ranks along each axis, 2 or 4.
        machine: ranks in each machine, 4 or 8.
        rank: the rank whose groups are shown, 0 to 7.
    """

    caption = (
        "Which group leaves its machine? Count the ranks in another order: talk may last nearly as long as products."
    )
    model = Control("Model", list(MODELS), "GPT-3 13B", kind="choice")
    order = Control("Slowest … fastest axis", list(ORDERS), "pipeline, data, tensor", kind="choice")
    machine = Control("Ranks in a machine", MACHINES, 4, kind="choice")
    tensor = Control("tensor", LENGTHS, 4, kind="choice")
    data = Control("data", LENGTHS, 2, kind="choice")
    pipeline = Control("pipeline", LENGTHS, 2, kind="choice")
    rank = Control("Look at rank", LOOKED_AT, 5)
    _table = staticmethod(cube_table)

    @property
    def mesh(self) -> Mesh:
        """Mesh that the controls describe."""
        return mesh_of(self.order, self.pipeline, self.data, self.tensor)

    @property
    def costs(self) -> dict[str, tuple[list[int], bool, Seconds]]:
        """Axis → the rank's group along it, whether it is torn, and its seconds in a step."""
        stage = self.mesh.coordinates(self.rank)["pipeline"]
        groups = {axis: self.mesh.group_of(self.rank, axis) for axis in AXES}
        bytes_along = sent(self.model, self.pipeline, self.data, self.tensor)[stage]
        torn = {axis: is_torn(group, self.machine) for axis, group in groups.items()}
        return {axis: (group, torn[axis], seconds(bytes_along[axis], torn[axis])) for axis, group in groups.items()}

    @property
    def computing(self) -> tuple[Seconds, Seconds]:
        """Seconds of computing, and of idle time in the bubble."""
        return computing(self.model, self.pipeline, self.data, self.tensor)

    def _picture(self, *, caption: str, alt: str) -> Picture:
        words = {axis: f"{took:.1s}{', network' if torn else ''}" for axis, (_, torn, took) in self.costs.items()}
        busy, idle = self.computing
        title = f"{self.model}: rank {self.rank} computes for {busy:.1s} of a step, and idles for {idle:.1s}"
        return in_machines(self.mesh, self.machine, self.rank, AXIS_COLORS, title, words, caption=caption, alt=alt)

    def _told(self) -> str:
        rows = [
            f"along {axis} with {', '.join(str(rank) for rank in group if rank != self.rank)} "
            f"({'over the network' if torn else 'inside its machine'}, {took:.1})"
            for axis, (group, torn, took) in self.costs.items()
        ]
        busy, idle = self.computing
        return (
            f"{self.mesh.size} ranks, {self.machine} in a machine. Rank {self.rank} computes for {busy:.1}, idles for "
            f"{idle:.1}, and talks {'; '.join(rows)}."
        )
