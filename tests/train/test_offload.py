"""Offload: the gradients do not notice; on a CPU nothing moves, on a GPU the saved bytes leave it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from course_lib.train.offload import OffloadSavedTensors
from course_lib.train.recompute import recompute
from tests.train.saved import gradients


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))


def step(model: nn.Sequential, x: Tensor) -> list[Tensor]:
    model(x).square().sum().backward()
    return gradients(model)


def test_on_a_cpu_nothing_moves_and_nothing_changes():
    model, x = mlp(), torch.randn(32, 64)
    plain = step(model, x)
    with OffloadSavedTensors() as offloaded:
        hidden = torch.tanh(model[0](x))
        saved = hidden.grad_fn._saved_result  # type: ignore[union-attr, attr-defined]
        assert saved.data_ptr() == hidden.data_ptr()  # the very same memory
        assert all(torch.equal(a, b) for a, b in zip(step(model, x), plain, strict=True))
    assert offloaded.moved == 0


@pytest.mark.gpu
def test_on_a_gpu_the_saved_bytes_leave_it_and_come_back():
    model, x = mlp().cuda(), torch.randn(4096, 64, device="cuda")
    plain = step(model, x)
    before = torch.cuda.memory_allocated()
    with OffloadSavedTensors(min_bytes=1024) as offloaded:
        loss = model(x).square().sum()
    # x, tanh's result twice (for itself and for the next matrix) and the squared result; not the weights.
    assert offloaded.moved == 4096 * 4 * (64 + 256 + 256 + 64)
    assert torch.cuda.memory_allocated() - before < 4096
    loss.backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), plain, strict=True))


@pytest.mark.gpu
def test_around_recompute_the_inputs_of_segments_move():
    model, x = mlp().cuda(), torch.randn(4096, 64, device="cuda")
    plain = step(model, x)
    with OffloadSavedTensors() as offloaded:
        result = recompute(model, x)
        assert offloaded.moved == x.numel() * 4
    result.square().sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), plain, strict=True))
