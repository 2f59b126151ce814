"""Offload to files: the gradients do not notice, the saved bytes leave the memory, and the files go with the graph."""

import weakref

import pytest
import torch
from torch import Tensor, nn

from course_kit import measure
from course_lib.offload.saved_tensors import OffloadToDisk
from course_lib.train.recompute import recompute
from tests.train.saved import gradients


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))


def step(model: nn.Sequential, x: Tensor) -> list[Tensor]:
    model(x).square().sum().backward()
    return gradients(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_to_disk_the_bytes_are_written_and_come_back(tmp_path, dtype):
    model, x = mlp().to(dtype), torch.randn(512, 64).to(dtype)
    plain = step(model, x)
    with OffloadToDisk(tmp_path, min_bytes=1024) as offloaded:
        loss = model(x).square().sum()
    # x, tanh's result twice (for itself and for the next matrix) and the squared result; not the weights.
    assert offloaded.moved == 512 * dtype.itemsize * (64 + 256 + 256 + 64)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) == offloaded.moved
    loss.backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), plain, strict=True))


def test_on_disk_it_holds_no_memory(tmp_path):
    model, x = mlp(), torch.randn(512, 64)
    with measure.memory(model, inputs=x) as record, OffloadToDisk(tmp_path):
        result = recompute(model, x)
        held = record.now
    result.square().sum().backward()
    assert held.activations == 0
    assert held.temporaries == x.nbytes + result.nbytes


def test_files_go_with_the_graph(tmp_path):
    model, x = mlp(), torch.randn(512, 64)
    with OffloadToDisk(tmp_path) as offloaded:
        loss = model(x).square().sum()
    loss.backward()
    (folder,) = tmp_path.iterdir()
    assert not list(folder.iterdir())
    del offloaded, loss
    assert not list(tmp_path.iterdir())


def test_no_parameter_is_written_frozen_or_not(tmp_path):
    model, x = mlp(), torch.randn(512, 64, requires_grad=True)
    model[2].requires_grad_(False)
    with OffloadToDisk(tmp_path, min_bytes=0) as offloaded:
        loss = model(x).sum()
    assert offloaded.moved == 512 * 4 * (64 + 256)  # x and tanh's result; the frozen layer saves its weight alone
    loss.backward()
    assert x.grad is not None


@pytest.mark.parametrize("changed", ["result", "weight"])
def test_what_stays_must_not_change_before_the_backward_pass(changed):
    """Autograd itself refuses that; but with hooks it does not look, and would compute with the new numbers."""
    weight = nn.Parameter(torch.ones(3))
    with OffloadToDisk():
        result = weight.exp()
        loss = (weight * result).sum()
    with torch.no_grad():
        {"result": result, "weight": weight}[changed].mul_(2)
    with pytest.raises(ValueError, match="changed in place after it was saved"):
        loss.backward()


def test_what_is_on_disk_may_change(tmp_path):
    x = torch.randn(3, requires_grad=True)
    with OffloadToDisk(tmp_path, min_bytes=0):
        result = x.exp()
    result.mul_(2).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().exp(), rtol=0, atol=0)


def test_without_a_backward_pass_the_graph_goes_all_the_same():
    with OffloadToDisk():
        result = torch.ones(3, requires_grad=True).exp()
    gone = weakref.ref(result)
    del result
    assert gone() is None


def test_small_tensors_views_and_odd_shapes(tmp_path):
    wide = torch.randn(40, 30, requires_grad=True)
    with OffloadToDisk(tmp_path, min_bytes=0) as offloaded:
        loss = (wide.T[3:, ::2].exp().sum() ** 2) * (wide > 0).float().mean()
        loss = loss + wide[:, :0].exp().sum()
    loss.backward()
    ours, wide.grad = wide.grad, None
    ((wide.T[3:, ::2].exp().sum() ** 2) * (wide > 0).float().mean()).backward()
    assert offloaded.moved > 0 and ours is not None and wide.grad is not None
    assert torch.equal(ours, wide.grad)
    with OffloadToDisk(tmp_path) as offloaded:
        torch.randn(1000, requires_grad=True).exp()
    assert offloaded.moved == 0
