"""One training step on one device: the oracle of this course.

Every faster, leaner or more parallel way to take a step must end with the same loss, the same gradients and the same
weights as this one.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[Tensor, Tensor],
) -> Float[Tensor, ""]:
    """Run forward and backward, and step. The gradients stay alive until the next call, for a look at them.

    Args:
        model: called as `model(inputs, targets)`; it returns the mean loss.
        optimizer: over the model's parameters.
        batch: inputs and targets, on the model's device; for the course's GPT each is int64 [batch, seq].

    Returns:
        The loss before the step, in nats, detached: holding on to it does not hold on to the graph.
    """
    inputs, targets = batch
    optimizer.zero_grad(set_to_none=True)  # frees the gradients: the forward pass runs without their memory
    loss = model(inputs, targets)
    loss.backward()
    optimizer.step()
    return loss.detach()
