"""A named grid of ranks: which ranks split a layer, which hold replicas, which form a pipeline.

    mesh = Mesh({"pipeline": 2, "data": 2, "tensor": 2})
    mesh.coordinates(5)                       # {"pipeline": 1, "data": 0, "tensor": 1}
    mesh.groups("data")                       # [[0, 2], [1, 3], [4, 6], [5, 7]]
    group = process_groups(mesh)["data"]      # on a rank: its own process group along that axis

Ranks are numbered with the last axis fastest. Neighbours in number are neighbours in the machine, so the axis that
talks most comes last: tensor parallelism inside the node, the pipeline between nodes (Narayanan et al. 2021, §3).
`Mesh` is arithmetic and needs no process; only `process_groups` does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch.distributed as dist


@dataclass(frozen=True)
class Mesh:
    """A grid of ranks with a name for each of its axes.

    Attributes:
        axes: name → length, the slowest axis first.

    Raises:
        ValueError: no axes, or a length is not a positive integer.
    """

    axes: Mapping[str, int]

    def __post_init__(self) -> None:
        bad = {name: n for name, n in self.axes.items() if isinstance(n, bool) or not isinstance(n, int) or n < 1}
        if bad or not self.axes:
            raise ValueError(
                f'Mesh({dict(self.axes)}): give each axis a name and 1 or more ranks, as in Mesh({{"data": 2}})'
            )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.axes.values())

    def coordinates(self, rank: int) -> dict[str, int]:
        """A rank's position along each axis; a ValueError if there is no such rank."""
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank}: this mesh has {self.size} ranks, which count from 0")
        places = np.unravel_index(rank, tuple(self.axes.values()))  # the last axis is the fastest
        return dict(zip(self.axes, map(int, places)))

    def rank(self, **coordinates: int) -> int:
        """The rank at these coordinates, as `coordinates` gives them; a ValueError for others."""
        if coordinates.keys() != self.axes.keys() or any(not 0 <= coordinates[a] < n for a, n in self.axes.items()):
            raise ValueError(f"{coordinates}: give a position for each axis, below its length: {dict(self.axes)}")
        return int(np.ravel_multi_index([coordinates[name] for name in self.axes], tuple(self.axes.values())))

    def groups(self, *names: str) -> list[list[int]]:
        """The groups of ranks that differ in nothing but their positions along these axes, in rank order.

        Every rank is in exactly one of them. With all axes named, there is one group; with none, a group for each rank.

        Raises:
            ValueError: there is no such axis.
        """
        if unknown := set(names) - self.axes.keys():
            raise ValueError(f"no axis {', '.join(sorted(unknown))}: this mesh has {', '.join(self.axes)}")
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            place = self.coordinates(rank)
            groups.setdefault(tuple(place[name] for name in self.axes if name not in names), []).append(rank)
        return list(groups.values())

    def group_of(self, rank: int, *names: str) -> list[int]:
        """The group of `groups(*names)` that holds this rank."""
        self.coordinates(rank)
        return next(group for group in self.groups(*names) if rank in group)

    def panels(self) -> list[tuple[dict[str, int], list[list[int]]]]:
        """Flat pictures of the grid, each with its position along the slower axes, and its ranks, row by row.

        The last axis runs to the right, the one before down.
        """
        *slow, rows, columns = ("", *self.axes) if len(self.axes) == 1 else self.axes  # a single axis is one row
        panels = np.arange(self.size).reshape(-1, self.axes.get(rows, 1), self.axes[columns]).tolist()
        places = itertools.product(*(range(self.axes[name]) for name in slow))
        return [(dict(zip(slow, place)), panel) for place, panel in zip(places, panels, strict=True)]

    def __str__(self) -> str:
        *_, down, right = (None, *self.axes)
        width = len(str(self.size - 1))
        lines = [f"{' × '.join(f'{name} {length}' for name, length in self.axes.items())} = {self.size} ranks"]
        lines += [f"to the right: {right}" + (f"; down: {down}" if down else "")]
        for place, rows in self.panels():
            lines += [", ".join(f"{name} {position}" for name, position in place.items())] if place else []
            lines += ["  " + "  ".join(f"{rank:{width}}" for rank in row) for row in rows]
        return "\n".join(lines)


def process_groups(mesh: Mesh) -> dict[str, dist.ProcessGroup]:
    """Axis → this rank's process group along the axis. All ranks must call, with the same mesh.

    Inside `ranks.run` the groups live until the call is over.

    Raises:
        ValueError: the mesh has another number of ranks than there are processes.
    """
    if mesh.size != dist.get_world_size():
        raise ValueError(f"this mesh has {mesh.size} ranks, but {dist.get_world_size()} processes run: they must agree")
    # every rank makes all groups of an axis, and gets its own
    return {axis: dist.new_subgroups_by_enumeration(mesh.groups(axis))[0] for axis in mesh.axes}  # type: ignore[misc]
