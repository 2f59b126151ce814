"""Ranks with a GPU each, under NCCL: layouts train as one process does, and NCCL's refusals are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_kit import ranks
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.hybrid import AXES, HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.train.step import train_step

pytestmark = pytest.mark.gpu
CONFIG = GPTConfig(layers=8, width=16, heads=2, vocab_size=31, context=8)
STEPS, ROUNDINGS = 3, 1e-9  # of numbers around 1, in 64 bits
LAYOUTS: list[tuple[tuple[int, int, int], dict[str, Any]]] = [
    ((1, 2, 1), {"zero": 2}),
    ((1, 1, 2), {"sequence_parallel": True}),
    ((2, 1, 1), {}),
    ((1, 4, 1), {"zero": 3}),
    ((2, 2, 1), {"zero": 1}),
    ((1, 2, 2), {"zero": 2}),
    ((2, 1, 2), {}),
    ((4, 1, 1), {"schedule": "zero-bubble"}),
    ((4, 1, 1), {"schedule": "interleaved", "micro_batches": 4}),
]
"""Ranks along pipeline, data and tensor; how."""


def need(gpus: int) -> None:
    """Skip where there are fewer."""
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")


def batch(step: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(31, (8, 9), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1].to(ranks.device()), tokens[:, 1:].to(ranks.device())


def trained(sizes: tuple[int, ...], how: dict[str, Any]) -> tuple[str, set[str], list[float]]:
    """The backend, the devices of a rank's parameters, and the loss before each step."""
    mesh, device = Mesh(dict(zip(AXES, sizes))), ranks.device()
    grid = HybridParallel(CONFIG, mesh, dtype=torch.float64, device=device, **{"micro_batches": 2, **how})
    optimizer = grid.optimizer(torch.optim.Adam, lr=0.01)
    losses = [float(grid.train_step(optimizer, batch(step))) for step in range(STEPS)]
    return dist.get_backend(), {str(p.device) for p in grid.parameters()}, losses


@pytest.mark.parametrize(("sizes", "how"), LAYOUTS, ids=str)
def test_a_layout_on_gpus_trains_as_one_process_does(sizes: tuple[int, ...], how: dict[str, Any]) -> None:
    world_size = torch.Size(sizes).numel()
    need(world_size)
    model = GPT(CONFIG, dtype=torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    expected = [float(train_step(model, optimizer, batch(step))) for step in range(STEPS)]
    by_rank = ranks.run(trained, sizes, how, world_size=world_size, timeout_s=60, diagnose=False)
    for rank, (backend, devices, losses) in enumerate(by_rank):
        assert backend == "cpu:gloo,cuda:nccl" and devices == {f"cuda:{rank}"}
        assert losses == pytest.approx(expected, rel=ROUNDINGS)


def test_results_and_arguments_change_their_gpu_on_the_way() -> None:
    need(2)
    sent = torch.arange(3.0, device="cuda")
    came = ranks.run(lambda x: (str(x.device), x + dist.get_rank()), sent, world_size=2)
    assert [device for device, _ in came] == ["cuda:0", "cuda:1"]
    assert torch.equal(came[1][1].cpu(), torch.arange(1.0, 4.0))


def test_more_ranks_than_gpus_get_gloo_or_a_refusal() -> None:
    world_size = torch.cuda.device_count() + 1
    assert set(ranks.run(dist.get_backend, world_size=world_size)) == {"gloo"}
    with pytest.raises(ValueError, match="NCCL needs a GPU for each"):
        ranks.Ranks(world_size, backend="nccl")


def on_the_first_gpu() -> None:
    dist.all_reduce(torch.ones(2, device="cuda:0"))


def test_two_ranks_on_one_gpu_are_told_by_nccl() -> None:
    need(2)
    with pytest.raises(ranks.RankFailure, match="Duplicate GPU|invalid usage|ncclInvalidUsage"):
        ranks.run(on_the_first_gpu, world_size=2, timeout_s=60)
