"""A named grid of ranks: which ranks split a layer, which hold replicas, which form a pipeline.

    mesh = Mesh({"pipe": 2, "data": 2, "tensor": 2})
    mesh.coordinates(5)                       # {"pipe": 1, "data": 0, "tensor": 1}
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

import torch.distributed as dist

from course_kit.communications import GROUP_OF_A_CALL


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
        """How many ranks there are."""
        return math.prod(self.axes.values())

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands: axis → position along it.

        Raises:
            ValueError: there is no such rank.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank}: this mesh has {self.size} ranks, which count from 0")
        places = {}
        for name, length in reversed(list(self.axes.items())):
            rank, places[name] = divmod(rank, length)
        return {name: places[name] for name in self.axes}

    def rank(self, **coordinates: int) -> int:
        """Who stands there; the inverse of `coordinates`.

        Raises:
            ValueError: an axis is missing or unknown, or a position is off the grid.
        """
        if coordinates.keys() != self.axes.keys() or any(not 0 <= coordinates[a] < n for a, n in self.axes.items()):
            raise ValueError(f"{coordinates}: give a position for each axis, below its length: {dict(self.axes)}")
        rank = 0
        for name, length in self.axes.items():
            rank = rank * length + coordinates[name]
        return rank

    def groups(self, *names: str) -> list[list[int]]:
        """The ranks that differ in nothing but their positions along these axes: a list for each group, in rank order.

        Every rank is in exactly one of them. With all axes named, there is one group; with none, a group for each rank.

        Raises:
            ValueError: there is no such axis.
        """
        self._check(names)
        fixed = [name for name in self.axes if name not in names]
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            place = self.coordinates(rank)
            found.setdefault(tuple(place[name] for name in fixed), []).append(rank)
        return list(found.values())

    def group_of(self, rank: int, *names: str) -> list[int]:
        """The one of `groups(*names)` that holds this rank."""
        self.coordinates(rank)
        return next(group for group in self.groups(*names) if rank in group)

    def panels(self) -> list[tuple[dict[str, int], list[list[int]]]]:
        """The grid as flat pictures: the last axis runs to the right, the one before it down, and for each position
        along the others there is a panel. What a figure of the mesh needs.

        Returns:
            For each panel: the position along the slower axes, and the ranks, row by row.
        """
        *slow, columns = self.axes
        down = slow.pop() if slow else None
        n_rows = self.axes[down] if down else 1
        n_columns = self.axes[columns]
        made = []
        for number, place in enumerate(itertools.product(*(range(self.axes[name]) for name in slow))):
            first = number * n_rows * n_columns
            rows = [[first + row * n_columns + column for column in range(n_columns)] for row in range(n_rows)]
            made.append((dict(zip(slow, place)), rows))
        return made

    def __str__(self) -> str:
        *_, down, right = (None, *self.axes)
        width = len(str(self.size - 1))
        lines = [f"{' × '.join(f'{name} {length}' for name, length in self.axes.items())} = {self.size} ranks"]
        lines += [f"to the right: {right}" + (f"; down: {down}" if down else "")]
        for place, rows in self.panels():
            lines += [", ".join(f"{name} {position}" for name, position in place.items())] if place else []
            lines += ["  " + "  ".join(f"{rank:{width}}" for rank in row) for row in rows]
        return "\n".join(lines)

    def _check(self, names: tuple[str, ...]) -> None:
        if unknown := set(names) - self.axes.keys():
            raise ValueError(f"no axis {', '.join(sorted(unknown))}: this mesh has {', '.join(self.axes)}")


def process_groups(mesh: Mesh) -> dict[str, dist.ProcessGroup]:
    """Axis → the process group of this rank along it. All ranks must call, with the same mesh.

    Every rank takes part in making every group, in the same order, its own or not: `new_group` is itself a collective.
    Inside `ranks.run` they live until the next call.

    Raises:
        ValueError: the mesh has another number of ranks than there are processes.
    """
    if mesh.size != dist.get_world_size():
        raise ValueError(f"this mesh has {mesh.size} ranks, but {dist.get_world_size()} processes run: they must agree")
    mine: dict[str, dist.ProcessGroup] = {}
    for axis in mesh.axes:
        for ranks in mesh.groups(axis):
            group = dist.new_group(ranks, group_desc=GROUP_OF_A_CALL)
            if dist.get_rank() in ranks:
                assert isinstance(group, dist.ProcessGroup)
                mine[axis] = group
    return mine
