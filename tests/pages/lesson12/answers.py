"""Answers to the turns of lesson 12."""

from __future__ import annotations

import math
from typing import Any

from course_pages.lesson12 import turns
from tests.pages.answers import Answers


def by_divmod(rank: int, pipeline: int, data: int, tensor: int) -> list[int]:
    rest, t = divmod(rank, tensor)
    return [*divmod(rest, data), t]


def pipe_fastest(rank: int, pipeline: int, data: int, tensor: int) -> tuple[int, ...]:
    return rank % pipeline, rank // pipeline % data, rank // (pipeline * data)


def without_the_length(rank: int, pipeline: int, data: int, tensor: int) -> tuple[int, ...]:
    return rank // 4, rank // 2 % 2, rank % 2


def pipe_alone(rank: int, pipeline: int, data: int, tensor: int) -> int:
    return rank // (data * tensor)


def data_twice(rank: int, pipeline: int, data: int, tensor: int) -> tuple[int, ...]:
    return rank // (data * tensor), rank // data % data, rank % tensor


def by_comparing(places: list[Any], axis: int) -> list[set[int]]:
    others = [place[:axis] + place[axis + 1 :] for place in places]
    return [{rank for rank, each in enumerate(others) if each == other} for other in sorted(set(others))]


def same_place(places: list[Any], axis: int) -> list[list[int]]:
    return [[r for r, place in enumerate(places) if place[axis] == n] for n in sorted({p[axis] for p in places})]


def by_strides(places: list[Any], axis: int) -> list[list[int]]:
    lengths = [max(each) + 1 for each in zip(*places)]
    stride = math.prod(lengths[axis + 1 :])
    firsts = [rank for rank, place in enumerate(places) if place[axis] == 0]
    return [[first + n * stride for n in range(lengths[axis])] for first in firsts]


def one_for_each_rank(places: list[Any], axis: int) -> list[list[int]]:
    others = [place[:axis] + place[axis + 1 :] for place in places]
    return [[rank for rank, each in enumerate(others) if each == other] for other in others]


def ends_apart(mesh: Any, axis: str, per_machine: int) -> int:
    return sum(min(group) // per_machine != max(group) // per_machine for group in mesh.groups(axis))


def by_span(mesh: Any, axis: str, per_machine: int) -> int:
    return sum(max(group) - min(group) >= per_machine for group in mesh.groups(axis))


def machines_less_one(mesh: Any, axis: str, per_machine: int) -> int:
    return sum(len({rank // per_machine for rank in group}) - 1 for group in mesh.groups(axis))


def all_if_one(mesh: Any, axis: str, per_machine: int) -> int:
    groups = mesh.groups(axis)
    return len(groups) if any(len({rank // per_machine for rank in group}) > 1 for group in groups) else 0


def by_size(mesh: Any, axis: str, per_machine: int) -> int:
    return sum(len(group) > per_machine for group in mesh.groups(axis))


def torn_ones(mesh: Any, axis: str, per_machine: int) -> list[list[int]]:
    return [group for group in mesh.groups(axis) if len({rank // per_machine for rank in group}) > 1]


def by_sets(mesh: Any, per_machine: int, dead: int) -> set[int]:
    alive = {mesh.rank(**mesh.coordinates(r)) for r in range(mesh.size)} - set(
        range(dead * per_machine, (dead + 1) * per_machine)
    )
    others = [axis for axis in mesh.axes if axis != "data"]
    return {mesh.coordinates(group[0])["data"] for group in mesh.groups(*others) if alive.issuperset(group)}


def lost_ones(mesh: Any, per_machine: int, dead: int) -> list[int]:
    ranks = range(dead * per_machine, (dead + 1) * per_machine)
    return sorted({mesh.coordinates(rank)["data"] for rank in ranks})


def any_rank_alive(mesh: Any, per_machine: int, dead: int) -> list[int]:
    alive = [rank for rank in range(mesh.size) if rank // per_machine != dead]
    return sorted({mesh.coordinates(rank)["data"] for rank in alive})


def two_ranks_of_the_machine(mesh: Any, per_machine: int, dead: int) -> list[int]:
    ends = dead * per_machine, (dead + 1) * per_machine - 1
    lost = {mesh.coordinates(rank)["data"] for rank in ends}
    return [place for place in range(mesh.axes["data"]) if place not in lost]


def first_parts_only(mesh: Any, per_machine: int, dead: int) -> list[int]:
    ranks = range(dead * per_machine, (dead + 1) * per_machine)
    lost = {mesh.coordinates(rank)["data"] for rank in ranks if mesh.coordinates(rank)["tensor"] == 0}
    return [place for place in range(mesh.axes["data"]) if place not in lost]


def machines_of_four(mesh: Any, per_machine: int, dead: int) -> list[int]:
    return sorted(by_sets(mesh, 4, dead))


def how_many(mesh: Any, per_machine: int, dead: int) -> int:
    return len(by_sets(mesh, per_machine, dead))


def machines_as_replicas(mesh: Any, per_machine: int, dead: int) -> list[int]:
    return [place for place in range(mesh.axes["data"]) if place != dead]


ANSWERS = {
    turns.check_address: Answers(
        right=[by_divmod],
        wrong={
            pipe_fastest: "rank 1 came out at (1, 0, 0)",
            without_the_length: "pipeline 4 × data 2 × tensor 8",
            data_twice: "came out at",
            pipe_alone: "rank 0 came out at 0",
        },
    ),
    turns.check_groups: Answers(
        right=[by_comparing],
        wrong={
            same_place: "agree on the two others",
            one_for_each_rank: "exactly one group",
            by_strides: "of a mesh of tensor 2",
        },
    ),
    turns.check_torn: Answers(
        right=[ends_apart],
        wrong={
            by_span: "machines of 4, came",
            machines_less_one: "counts once",
            all_if_one: "tensor 3, on machines of 4, came 6",
            by_size: "came 0",
            torn_ones: "came [[0, 4]",
        },
    ),
    turns.check_whole: Answers(
        right=[by_sets],
        wrong={
            lost_ones: "not one of its ranks",
            any_rank_alive: "came [0, 1]",
            machines_of_four: "with 2 ranks each: came []",
            how_many: "came 0",
            machines_as_replicas: "came [1]",
            two_ranks_of_the_machine: "came [1, 2]",
            first_parts_only: "came [0, 1, 2, 3]",
        },
    ),
}
