"""Whoever communicates, `measure.traffic` counts it and `measure.timeline` draws it by the same name, on real ranks."""

import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_kit import measure, ranks
from course_kit.accounts import TrafficAccount
from course_kit.communications import backend_of

WIDTH, HIDDEN, TOKENS = 512, 1024, 256
ON_LINUX = sys.platform.startswith("linux")


def mlp() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, HIDDEN, bias=False), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, WIDTH, bias=False)
    )


def tensor_parallel() -> Callable[[], object]:
    """A step of a tensor-parallel MLP: its output is summed over the ranks, and the gradient of its input."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.ones(TOKENS, WIDTH, requires_grad=True)
    return lambda: model(x).square().sum().backward()


def sharded() -> Callable[[], object]:
    """A step of the same MLP under `fully_shard`: gather the weights, scatter the gradients."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, x = mlp(), torch.ones(TOKENS, WIDTH)
    fully_shard(model, mesh=mesh)
    return lambda: model(x).square().sum().backward()


def waited(start: Callable[..., torch.Tensor], *args: object) -> Callable[[], object]:
    return lambda: start(torch.ones(8), *args, group=dist.group.WORLD).wait()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("backends", "of_the_cpu", "of_a_gpu"),
    [
        ("cpu:gloo,cuda:gloo", "gloo", "gloo"),
        ("cpu:gloo,cuda:nccl", "gloo", "nccl"),
        ("cpu:gloo", "gloo", ""),
        ("cuda:nccl", "", "nccl"),
    ],
)
def test_each_kind_of_device_has_its_backend(backends, of_the_cpu, of_a_gpu):
    with mock.patch.object(dist, "get_backend_config", return_value=backends):
        assert backend_of(torch.device("cpu")) == of_the_cpu
        assert backend_of(torch.device("cuda", 1)) == of_a_gpu


def backends_here() -> list[str]:
    group: Any = dist.new_group([0], backend="gloo")
    return [backend_of(torch.device(kind), of) for of in (None, group) for kind in ("cpu", "cuda")]


def test_the_backends_of_a_real_group():
    with ranks.Ranks(1, "cpu:gloo") as pool:
        assert pool.run(backends_here) == [["gloo", "", "gloo", "gloo"]]


N_BYTES, WEIGHTS_BYTES = 4 * TOKENS * WIDTH, 4 * 2 * WIDTH * HIDDEN
STEPS: dict[str, tuple[Callable[[], Callable[[], object]], dict[str, int]]] = {  # name → what makes the step; its bytes
    # of 2 ranks, each sends 2(p-1)/p = 1 tensor: the output, and the input's gradient
    "tensor_parallel": (tensor_parallel, {"all_reduce": 2 * N_BYTES}),
    "sharded": (sharded, {"all_gather": WEIGHTS_BYTES // 2, "reduce_scatter": WEIGHTS_BYTES // 2}),
    "functional all_reduce": (lambda: waited(functional.all_reduce, "sum"), {"all_reduce": 32}),
    "functional all_gather": (lambda: waited(functional.all_gather_tensor, 0), {"all_gather": 32}),
    "functional reduce_scatter": (lambda: waited(functional.reduce_scatter_tensor, "sum", 0), {"reduce_scatter": 16}),
    "functional all_to_all": (lambda: waited(functional.all_to_all_single, None, None), {"all_to_all": 16}),
    "functional broadcast": (lambda: waited(functional.broadcast, 0), {"broadcast": 32}),
    "reduce_scatter": (
        lambda: lambda: dist.reduce_scatter(torch.ones(4), list(torch.ones(2, 4))),
        {"reduce_scatter": 16},
    ),
}


def recorded(name: str) -> tuple[TrafficAccount, measure.RankTimeline]:
    step = STEPS[name][0]()
    with measure.timeline() as record, measure.traffic() as sent:
        step()
    return sent, record


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[TrafficAccount, measure.RankTimeline]]:
    """What rank 0 of 2 counted and drew, by step."""
    return {name: ranks.run(recorded, name, world_size=2)[0] for name in STEPS}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_counted_and_drawn_by_the_same_names(name, found):
    sent, record = found[name]
    assert dict(sent.modelled_bytes) == STEPS[name][1]
    drawn = [event.name for event in record.of(0, "send")]
    assert {each: drawn.count(each) for each in drawn} == dict(sent.messages)
    assert {event.name for event in record.of(0, "wait")} == set(sent.messages)
    assert all(event.end_s > event.start_s for event in record.of(0, "send"))


@pytest.mark.skipif(not ON_LINUX, reason="only Linux counts the bytes of a socket")
def test_the_kernel_agrees_where_gloo_does_what_the_formula_says(found):
    sent, _ = found["tensor_parallel"]
    assert sent.total_bytes <= sent.observed_bytes <= 1.01 * sent.total_bytes
    sent, _ = found["sharded"]  # gloo's reduce-scatter is an all-reduce that throws most away
    really = sent.total_bytes + sent.modelled_bytes["reduce_scatter"]
    assert really <= sent.observed_bytes <= 1.01 * really
