"""Checks of the functions that a reader of lesson 12 writes."""

from __future__ import annotations

from collections.abc import Iterable

from course_kit.notebook.your_turn import Function
from course_lib.parallel.mesh import Mesh

CUBE = Mesh({"pipeline": 2, "data": 2, "tensor": 2})
UNEVEN = Mesh({"pipeline": 2, "data": 2, "tensor": 3})
"""A mesh of which, on machines of 4, some groups along tensor are torn, and some are not."""
EXERCISES = (
    Mesh({"pipeline": 16, "data": 8, "tensor": 8}).rank(pipeline=3, data=2, tensor=5) // 8,
    1920 // (4480 // (8 * 35)),
    min(range(60, 7200), key=lambda t: 30 / t + t / 2 / (8 * 3600)) / 60,
)
"""Answers to the exercises: a machine, micro-batches, minutes."""


def check_address(address: Function) -> None:
    """Places of all ranks, for lengths that differ."""
    for lengths in ((2, 2, 2), (4, 2, 8), (2, 3, 1), (2, 2, 3)):
        mesh = Mesh(dict(zip(CUBE.axes, lengths)))
        for rank in range(mesh.size):
            came = address(rank, *mesh.axes.values())
            right = isinstance(came, Iterable) and tuple(came) == tuple(mesh.coordinates(rank).values())
            assert right, (
                f"in a mesh of {_told(mesh)}, rank {rank} came out at {came}; count ranks from 0 up, tensor moves with "
                "each, and the next axis moves when the one before has come round"
            )


def check_groups(groups: Function) -> None:
    """Groups along each axis, as lists in any order, also where another axis than tensor is the fastest."""
    for mesh in (CUBE, Mesh({"pipeline": 2, "data": 3, "tensor": 4}), Mesh({"tensor": 2, "data": 1, "pipeline": 3})):
        places = [tuple(mesh.coordinates(rank)[axis] for axis in CUBE.axes) for rank in range(mesh.size)]
        for number, axis in enumerate(CUBE.axes):
            came = groups(places, number)
            assert came is not None, "groups returned None; return a list of lists of ranks"
            came = sorted(sorted(group) for group in came)
            assert came == mesh.groups(axis), (
                f"along axis {number}, {axis}, of a mesh of {_told(mesh)} came {came}; every rank belongs into exactly "
                "one group, with those that differ from it on this axis and agree on the two others"
            )


def check_torn(torn: Function) -> None:
    """Whole groups, torn ones, both along one axis, a group that begins in the middle of a machine, one over three."""
    cases = [
        (CUBE, 4),
        (Mesh({"tensor": 2, "data": 2, "pipeline": 2}), 4),
        (Mesh({"pipeline": 2, "data": 2, "tensor": 8}), 8),
        (CUBE, 2),
        (UNEVEN, 4),
        (Mesh({"pipeline": 3, "data": 1, "tensor": 4}), 4),
    ]
    for mesh, per_machine in cases:
        for axis in mesh.axes:
            came = torn(mesh, axis, per_machine)
            machines = [{rank // per_machine for rank in group} for group in mesh.groups(axis)]
            right = came == sum(len(each) > 1 for each in machines)
            assert right, (
                f"along {axis} in a mesh of {_told(mesh)}, on machines of {per_machine}, came {came}; each group "
                "counts once if any two of its ranks are in different machines"
            )


def check_whole(whole: Function) -> None:
    """Replicas that a dead machine leaves, with the data axis slowest, in the middle and fastest; in one case none."""
    cases = [
        (CUBE, 4, 0),
        (Mesh({"data": 2, "pipeline": 2, "tensor": 2}), 4, 0),
        (Mesh({"data": 2, "pipeline": 2, "tensor": 2}), 4, 1),
        (Mesh({"data": 4, "pipeline": 2, "tensor": 2}), 4, 2),
        (Mesh({"pipeline": 2, "data": 4, "tensor": 2}), 4, 3),
        (CUBE, 2, 1),
        (Mesh({"pipeline": 2, "tensor": 2, "data": 4}), 4, 1),
    ]
    for mesh, per_machine, dead in cases:
        came = whole(mesh, per_machine, dead)
        lost = {mesh.coordinates(rank)["data"] for rank in range(mesh.size) if rank // per_machine == dead}
        left = [place for place in range(mesh.axes["data"]) if place not in lost]
        assert isinstance(came, Iterable) and sorted(came) == left, (
            f"in a mesh of {_told(mesh)}, machine {dead} dies, of those with {per_machine} ranks each: came {came}; "
            "a replica is whole if not one of its ranks, of any stage or part, was in that machine"
        )


def _told(mesh: Mesh) -> str:
    return " × ".join(f"{axis} {length}" for axis, length in mesh.axes.items())
