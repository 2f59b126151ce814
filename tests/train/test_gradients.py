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
    assert optimizer.pending_grad_scale.factor == 1
    multiply_gradients(optimizer, 5)
    optimizer.zero_grad()
    assert optimizer.pending_grad_scale.factor == 1


CHANGES = {
    "PyTorch's clipping": lambda weight: torch.nn.utils.clip_grad_norm_([weight], 1e-3),
    "one more backward pass": lambda weight: weight.sum().backward(),
    "new gradients": lambda weight: setattr(weight, "grad", torch.ones(3)),
    "no gradients": lambda weight: setattr(weight, "grad", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_gradients_that_change_while_a_factor_waits_are_refused(change):
    """They are still 1024 times too long then; PyTorch's clipping would shorten them to 1e-3 / 1024."""
    weight = nn.Parameter(torch.zeros(3))
    optimizer = SGD([weight], lr=1.0)
    weight.sum().backward()
    multiply_gradients(optimizer, 2.0**-10)
    CHANGES[change](weight)
    for call in (optimizer.step, lambda: clip_gradients(optimizer, 1.0)):
        with pytest.raises(ValueError, match="gradients have changed after unscale_ or clip_gradients"):
            call()
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
    assert weight.tolist() == [-1.0] * 3


@pytest.mark.parametrize("kind", [SGD, torch.optim.SGD], ids=["ours", "torch"])
def test_a_length_of_nan_spoils_all_gradients_as_with_torch(kind):
    weight = nn.Parameter(torch.zeros(2))
    optimizer = kind([weight], lr=1.0)
    weight.grad = torch.tensor([1.0, torch.nan])
    clip_gradients(optimizer, 1.0)
    optimizer.step()
    assert weight.isnan().all()


def test_fp16_gradients_of_another_optimizer_are_not_shrunk():
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float16))
    weight.grad = torch.ones_like(weight)
    with pytest.raises(ValueError, match="use MasterWeights"):
        multiply_gradients(torch.optim.SGD([weight], lr=1.0), 2.0**-10)
