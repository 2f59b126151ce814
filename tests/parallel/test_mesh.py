"""The grid of ranks: its arithmetic, its picture, and its groups beside torch's own."""

import itertools
import os
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from course_kit import ranks
from course_lib.parallel.mesh import Mesh, process_groups
from tests.parallel.judging import on_ranks, refused

CUBE = Mesh({"pipeline": 2, "data": 2, "tensor": 2})


def test_the_last_axis_is_the_fastest():
    assert [CUBE.coordinates(rank)["tensor"] for rank in range(8)] == [0, 1] * 4
    assert [CUBE.coordinates(rank)["pipeline"] for rank in range(8)] == [0] * 4 + [1] * 4
    assert CUBE.groups("tensor") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert CUBE.groups("data") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert CUBE.groups("pipeline") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert CUBE.groups("pipeline", "tensor") == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert CUBE.groups() == [[rank] for rank in range(8)]
    assert CUBE.group_of(6, "data") == [4, 6]


@pytest.mark.parametrize("lengths", [(1,), (5,), (2, 3), (3, 1, 4), (2, 2, 2, 3)])
def test_coordinates_and_ranks_are_inverse_and_groups_cut_the_mesh(lengths):
    mesh = Mesh({f"axis{number}": length for number, length in enumerate(lengths)})
    assert [mesh.rank(**mesh.coordinates(rank)) for rank in range(mesh.size)] == list(range(mesh.size))
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(mesh.axes, n) for n in range(len(mesh.axes) + 1)
    ):
        groups = mesh.groups(*chosen)
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
        for group in groups:
            fixed = {tuple(p for axis, p in mesh.coordinates(rank).items() if axis not in chosen) for rank in group}
            assert len(fixed) == 1
    assert sorted(rank for _, rows in mesh.panels() for row in rows for rank in row) == list(range(mesh.size))


def test_the_picture():
    assert str(CUBE) == (
        "pipeline 2 × data 2 × tensor 2 = 8 ranks\nto the right: tensor; down: data\n"
        "pipeline 0\n  0  1\n  2  3\npipeline 1\n  4  5\n  6  7"
    )
    assert str(Mesh({"data": 3})) == "data 3 = 3 ranks\nto the right: data\n  0  1  2"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Mesh({}), "give each axis a name"),
        (lambda: Mesh({"data": 0}), "1 or more ranks"),
        (lambda: CUBE.coordinates(8), "has 8 ranks"),
        (lambda: CUBE.rank(pipeline=1, data=2, tensor=0), "below its length"),
        (lambda: CUBE.rank(pipeline=1), "give a position for each axis"),
        (lambda: CUBE.groups("expert"), "no axis expert: this mesh has pipeline, data, tensor"),
    ],
)
def test_mistakes_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


@on_ranks(8)
def test_groups_are_device_meshs_and_carry_messages():
    theirs = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pipeline", "data", "tensor"))
    for axis, group in process_groups(CUBE).items():
        members, total = dist.get_process_group_ranks(group), torch.tensor(dist.get_rank())
        dist.all_reduce(total, group=group)
        assert total == sum(members)
        assert members == dist.get_process_group_ranks(theirs.get_group(axis)) == CUBE.group_of(dist.get_rank(), axis)


def test_a_mesh_of_another_size_is_refused():
    assert refused(2, [(lambda: process_groups(CUBE), "this mesh has 8 ranks, but 2 processes run")]) == []


def in_groups() -> int:
    for group in process_groups(Mesh({"data": 2, "tensor": 2})).values():
        dist.all_reduce(torch.ones(3), group=group)
    return threads()


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in Linux's /proc")
def test_groups_and_their_threads_are_given_back_after_the_call() -> None:
    """Each group of gloo has threads that look for work all the time; a notebook makes a mesh in every other cell."""
    before = ranks.run(threads, world_size=4)
    during = ranks.run(in_groups, world_size=4)
    assert ranks.run(threads, world_size=4) == before
    assert all(more > fewer for more, fewer in zip(during, before))


def through_a_device_mesh() -> float:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    layer = parallelize_module(torch.nn.Linear(4, 4), mesh["tensor"], ColwiseParallel())
    fully_shard(layer, mesh=mesh["data"])
    (loss := layer(torch.ones(2, 4)).square().sum()).backward()
    return float(loss)


def test_pytorchs_meshes_work_in_one_call_after_the_other() -> None:
    first, second = (ranks.run(through_a_device_mesh, world_size=4) for _ in range(2))
    assert first == second
