"""A number that gradients are to be multiplied by, and that waits until the optimizer uses them.

Loss scaling and clipping multiply all gradients by one number. Done at once, that is a pass over memory, and 16-bit
gradients would lose what loss scaling has saved. So the number waits in the optimizer, which multiplies in fp32.

The price: until the step, `.grad` is not yet what it will count as. Whoever changes it in between (PyTorch's own
clipping, one more backward pass, a new gradient) would mix two sizes. That is noticed, and refused.

Lesson 04 uses this module without opening it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef


@dataclass(frozen=True)
class Waiting:
    """What waits, and for which gradients.

    Attributes:
        factor: the number; 1 when nothing waits.
        gradients: each gradient that it was said of, and the version that the gradient had (PyTorch counts in-place
            changes of a tensor).
    """

    factor: float = 1.0
    gradients: tuple[tuple[TensorWeakRef, int], ...] = ()

    def times(self, factor: float, gradients: Sequence[Tensor]) -> Waiting:
        """What waits when these gradients are to be multiplied by `factor` as well; errors as in `check`."""
        self.check(gradients)
        return Waiting(self.factor * factor, tuple((TensorWeakRef(g), g._version) for g in gradients))

    def check(self, gradients: Sequence[Tensor]) -> None:
        """Refuse other gradients than those that the number was said of.

        Raises:
            ValueError: something waits, and a gradient has changed, gone or come since.
        """
        unchanged = len(gradients) == len(self.gradients) and all(
            known() is gradient and version == gradient._version
            for gradient, (known, version) in zip(gradients, self.gradients, strict=True)
        )
        if self.factor != 1 and not unchanged:
            raise ValueError(
                "gradients have changed after unscale_ or clip_gradients, whose factor still waits for the step: do "
                "all backward passes before, clip with clip_gradients (not torch.nn.utils.clip_grad_norm_), and clear "
                "gradients with optimizer.zero_grad()"
            )

    def apply(self, gradient: Tensor) -> Tensor:
        """The gradient times the number, in fp32 or wider; the gradient itself if nothing waits."""
        if self.factor == 1:
            return gradient
        return gradient.to(torch.promote_types(gradient.dtype, torch.float32)) * self.factor
