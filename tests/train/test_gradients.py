"""Gradients between backward and step: clipped as PyTorch clips, multiplied when they are used and not before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from course_lib.train.gradients import clip_gradients, gradient_norm, multiply_gradients
from course_lib.train.optim import SGD
from tests.train.test_optim import STEPS, Parameters


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("kind", [SGD, torch.optim.SGD], ids=["ours", "torch"])
def test_clipping_equals_torch(kind, max_norm):
    ours, theirs = Parameters(), Parameters()
    our_optimizer, their_optimizer = kind(ours.parameters(), lr=0.1), torch.optim.SGD(theirs.parameters(), lr=0.1)
    for step in range(STEPS):
        ours.fill_gradients(step)
        theirs.fill_gradients(step)
        length = clip_gradients(our_optimizer, max_norm)
        their_length = torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        our_optimizer.step()
        their_optimizer.step()
        assert length == pytest.approx(their_length.item(), rel=1e-14)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_the_factor_waits_for_the_step_and_then_is_gone():
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float16))
    optimizer = SGD([weight], lr=1.0)
    weight.grad = torch.full((1,), 2.0**-20, dtype=torch.float16)
    multiply_gradients(optimizer, 2.0**-10)
    assert weight.grad.item() == 2.0**-20 and gradient_norm(optimizer) == 2.0**-30
    optimizer.step()
    assert optimizer.gradient_factor == 1
    multiply_gradients(optimizer, 5)
    optimizer.zero_grad()
    assert optimizer.gradient_factor == 1


def test_fp16_gradients_of_another_optimizer_are_not_shrunk():
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float16))
    weight.grad = torch.ones_like(weight)
    with pytest.raises(ValueError, match="use MasterWeights"):
        multiply_gradients(torch.optim.SGD([weight], lr=1.0), 2.0**-10)
