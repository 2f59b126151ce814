"""The cube explorer's table, its sentence and its picture, without a browser."""

from __future__ import annotations

import pytest

from course_lib import predict
from course_lib.model import zoo
from course_lib.parallel.mesh import Mesh
from course_lib.predict import Setup
from course_pages.lesson12.explorer import (
    ACROSS,
    BATCH,
    INSIDE,
    ORDERS,
    REACHED,
    CubeExplorer,
    cube_table,
    is_torn,
    seconds,
)


@pytest.mark.parametrize("shape", [(2, 2, 4), (4, 2, 2)])
def test_the_table_holds_what_the_library_predicts(shape: tuple[int, int, int]) -> None:
    pipeline, data, tensor = shape
    setup = Setup(zoo.GPT3_13B, BATCH, precision="mixed", micro_batch=1, pipeline=pipeline, data=data, tensor=tensor)
    for stage, found in enumerate(cube_table()["sent"]["GPT-3 13B"]["-".join(map(str, shape))]):
        for axis, account in predict.rank_traffic(setup, stage).items():
            total = int(account.total_bytes)
            assert found[axis][0] == f"{total / 1e9:.1f} GB"
            assert found[axis][1:] == pytest.approx([total / INSIDE, total / ACROSS], abs=1e-4)


def test_seconds_of_computing_are_the_steps_flops_over_all_ranks() -> None:
    """13 billion parameters and 512 · 2,048 tokens are about 6 · 13e9 · 2^20 FLOPs; one of 256 slots is idle."""
    busy, idle = cube_table()["computing"]["GPT-3 13B"]["2-2-4"]
    assert busy == pytest.approx(6 * 13e9 * 2**20 / (16 * REACHED), rel=0.06)
    assert idle == pytest.approx(busy / 256, rel=0.01)


def test_groups_are_the_meshs_in_every_order() -> None:
    for order, axes in ORDERS.items():
        mesh = Mesh({axis: {"pipeline": 2, "data": 4, "tensor": 2}[axis] for axis in axes})
        for rank, groups in enumerate(cube_table()["groups"][order]["2-4-2"]):
            assert groups == {axis: mesh.group_of(rank, axis) for axis in axes}
        assert cube_table()["stage"][order]["2-4-2"] == [mesh.coordinates(rank)["pipeline"] for rank in range(8)]


def test_tensor_slowest_is_the_dearest_order() -> None:
    """All of its all-reduces go over the network, which is 12 times slower."""
    explorer = CubeExplorer(model="GPT-3 13B", tensor=4, machine=4)
    inside = explorer.costs["tensor"]
    explorer.order = "tensor, pipeline, data"
    group, torn, took = explorer.costs["tensor"]
    assert (inside[1], torn) == (False, True) and len(group) == 4
    assert float(took) == pytest.approx(float(inside[2]) * INSIDE / ACROSS)


def test_a_group_is_torn_if_it_is_in_two_machines() -> None:
    assert not is_torn([4, 5, 6, 7], 4) and is_torn([3, 4], 4) and not is_torn([0, 7], 8)
    assert float(seconds(25 * 10**9, True)) == 1 and float(seconds(3 * 10**11, False)) == 1
