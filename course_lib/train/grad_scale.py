"""A factor for all gradients that is pending until the optimizer's step (PyTorch's fused optimizers: `grad_scale`).

Loss scaling and clipping multiply all gradients by one number. Multiplying at once is a pass over memory, and 16-bit
gradients would lose the small numbers that loss scaling has saved. So the factor stays with the optimizer, which
multiplies in fp32 (over fp16 weights only `MasterWeights` keeps the product; a bare rule rounds it to fp16 again):

    unscale_, clip_gradients  ── times(factor) ──▶  optimizer.pending_grad_scale  ── check, apply ──▶  step
                                                       1 again after step and zero_grad

The price: until the step, `.grad` lacks the factor. A change of `.grad` in between (PyTorch's own clipping, one more
backward pass, a new gradient) would mix two sizes, so the next use of the factor refuses changed gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef


@dataclass(frozen=True)
class PendingGradScale:
    """The pending factor, and the gradients that it belongs to.

    Attributes:
        factor: the number that multiplies all gradients; 1 when none is pending.
        gradients: each gradient at the time of the last `times`, with the version that it had (PyTorch counts a
            tensor's in-place changes). Weak references: a gradient that is cleared is freed.
    """

    factor: float = 1.0
    gradients: tuple[tuple[TensorWeakRef, int], ...] = ()

    def times(self, factor: float, gradients: Sequence[Tensor]) -> PendingGradScale:
        """The pending scale with one more factor, for these gradients; errors as in `check`."""
        self.check(gradients)
        return PendingGradScale(self.factor * factor, tuple((TensorWeakRef(g), g._version) for g in gradients))

    def check(self, gradients: Sequence[Tensor]) -> None:
        """Refuse other gradients than those that the factor belongs to.

        Raises:
            ValueError: a factor is pending, and a gradient has changed, gone or come since.
        """
        unchanged = len(gradients) == len(self.gradients) and all(
            known() is gradient and version == gradient._version  # known() is None once the gradient is freed
            for gradient, (known, version) in zip(gradients, self.gradients, strict=True)
        )
        if self.factor != 1 and not unchanged:
            raise ValueError(
                "gradients have changed after unscale_ or clip_gradients, whose factor still waits for the step: do "
                "all backward passes before, clip with clip_gradients (not torch.nn.utils.clip_grad_norm_), and clear "
                "gradients with optimizer.zero_grad()"
            )

    def apply(self, gradient: Tensor) -> Tensor:
        """The gradient times the factor, in fp32 or wider; the gradient itself if no factor is pending."""
        if self.factor == 1:
            return gradient
        return gradient.to(torch.promote_types(gradient.dtype, torch.float32)) * self.factor
