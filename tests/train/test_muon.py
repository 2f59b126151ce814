"""Muon: PyTorch's numbers at every step, singular values near 1, half of AdamW's state, and no slices."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from course_lib.train.muon import Muon, orthogonalize
from tests.predict.refused import refused

SHAPES = {"wide": (6, 10), "tall": (20, 4), "square": (8, 8)}


def parameters(dtype: torch.dtype) -> dict[str, nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return {
        name: nn.Parameter(torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype))
        for name, shape in (SHAPES | {"vector": (7,), "head": (3, 5)}).items()
    }


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch has it since 2.9")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_step_equals_torch(dtype):
    ours, theirs = parameters(dtype), parameters(dtype)
    adam = {"lr": 3e-3, "betas": (0.8, 0.95), "weight_decay": 0.05}
    groups = [
        {"params": [ours[name] for name in SHAPES]},
        {"params": [ours["vector"], ours["head"]], "orthogonal": False},
    ]
    mine = Muon([groups[0], groups[1] | adam], lr=0.02, momentum=0.9, weight_decay=0.1)
    muon = torch.optim.Muon([theirs[name] for name in SHAPES], lr=0.02, momentum=0.9, weight_decay=0.1)
    adamw = torch.optim.AdamW([theirs["vector"], theirs["head"]], **adam)  # type: ignore[arg-type]
    for step in range(20):
        for index, (name, parameter) in enumerate(ours.items()):
            draw = torch.Generator().manual_seed(10 * step + index)
            parameter.grad = torch.randn(parameter.shape, generator=draw, dtype=dtype) * 10.0 ** (step % 5 - 3)
            theirs[name].grad = parameter.grad.clone()
        for optimizer in (mine, muon, adamw):
            optimizer.step()
        for name, parameter in ours.items():
            assert torch.equal(parameter, theirs[name]), f"{name} after step {step}"


@pytest.mark.parametrize("shape", SHAPES.values())
def test_all_directions_come_to_be_about_equally_long(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    found = left.T @ orthogonalize(matrix).float() @ right.T  # the same directions, with other lengths
    lengths = found.diagonal()
    assert lengths.min() > 0.6 and lengths.max() < 1.3
    assert (found - lengths.diag()).abs().max() < 0.05


def test_a_slice_has_other_directions():
    matrix = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    whole, halves = orthogonalize(matrix), torch.cat([orthogonalize(half) for half in matrix.chunk(2)])
    assert (whole - halves).abs().max() > 0.1


def test_state_is_half_of_adamws():
    matrix = nn.Parameter(torch.ones(6, 10))
    matrix.grad = torch.ones(6, 10)
    optimizer = Muon([matrix])
    optimizer.step()
    assert optimizer.state_bytes == 4 * 60


VECTOR = nn.Parameter(torch.ones(3))
test_what_is_no_matrix_needs_a_group_of_its_own = refused(
    (lambda: Muon([VECTOR]), r"shape \(3,\) is no matrix; give it in a group with orthogonal=False"),
    (lambda: Muon([nn.Parameter(torch.ones(2, 2))], momentum=1.5), r"momentum=1.5"),
)
