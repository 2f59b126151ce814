"""What may happen to gradients between `backward` and `step`: they are measured, scaled and clipped.

Loss scaling and clipping both multiply all gradients by one number. For an optimizer of this course (`optim.py`) that
number waits in the optimizer and is applied in fp32, when each gradient is used: nothing is rewritten, no memory is
read, and fp16 gradients lose nothing. For any other optimizer the gradients are multiplied in place.

Lesson 04 opens this module.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.train.optim import Optimizer


def gradients_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The gradients of all parameters that have one."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def multiply_gradients(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Multiply all gradients: at the next `step` for an optimizer of this course, at once for another.

    Raises:
        ValueError: an optimizer that is not of this course has fp16 gradients, and the factor is below 1: what loss
            scaling has saved from underflow would be lost again.
    """
    if isinstance(optimizer, Optimizer):
        optimizer.gradient_factor *= factor
        return
    for gradient in gradients_of(optimizer):
        if gradient.dtype == torch.float16 and factor < 1:
            raise ValueError(
                f"fp16 gradients times {factor:.3g} would lose their small numbers; keep the weights in fp32 "
                "(CastPolicy casts for each operation), or use MasterWeights, which multiplies in fp32"
            )
        gradient.mul_(factor)


def gradient_norm(optimizer: torch.optim.Optimizer) -> float:
    """The length of all gradients as one vector, with the factor that waits for them; summed in fp32 or wider."""
    gradients = gradients_of(optimizer)
    norms = [torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32)) for g in gradients]
    length = float(torch.stack(norms).norm()) if norms else 0.0
    return length * getattr(optimizer, "gradient_factor", 1.0)


def clip_gradients(optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Shorten the gradient to `max_norm` where it is longer (Pascanu et al. 2013, Algorithm 1).

    All gradients are multiplied by one number, so the direction stays. With a loss scaler, unscale first: the scaled
    gradient is longer by the scale, so it would always be cut, to `max_norm / scale`. Numbers as
    `torch.nn.utils.clip_grad_norm_` has them.

    Returns:
        The length before.
    """
    length = gradient_norm(optimizer)
    multiply_gradients(optimizer, min(1.0, max_norm / (length + 1e-6)))
    return length
