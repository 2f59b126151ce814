"""The backward pass of linear layers in two halves: B for the gradient of the input, W for that of the weight.

For y = x Wᵀ with the gradient g of y, the stage before waits for g W, and no other stage for gᵀ x. Autograd computes
both at once; inside `DeferredWeightGradients` it computes g W only, and puts gᵀ x on a list, which keeps x and g until
W is done. All other layers have few weights, and all their gradients are part of B. Qi et al. 2023, §2.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.overrides import TorchFunctionMode

DeferredWork = list[partial[None]]
"""One call for each linear layer, which adds its weight gradient to `.grad`."""


class LinearDeferringWeight(Function):
    """`F.linear` with a backward pass that defers the gradients of weight and bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, later: DeferredWork) -> Tensor:
        """x Wᵀ + b."""
        ctx.save_for_backward(x, weight)
        ctx.weight, ctx.bias, ctx.later = weight, bias, later
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        """B: the gradient of the input; W goes on the list."""
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        # detached: earlier nodes of x's graph hold the list, a circle; and W would record a graph of its own
        x, weight = x.detach().to(gradient.dtype), weight.to(gradient.dtype)  # autocast has saved wider ones
        ctx.later.append(partial(add_weight_gradients, ctx.weight, ctx.bias, x, gradient))
        return gradient @ weight if ctx.needs_input_grad[0] else None, None, None, None  # (..., out) @ (out, in)


def add_weight_gradients(weight: nn.Parameter, bias: nn.Parameter | None, x: Tensor, gradient: Tensor) -> None:
    """W: add gᵀ x to the weight's `.grad`, and the sum of g over all tokens to the bias's."""
    x, gradient = x.flatten(0, -2), gradient.flatten(0, -2)  # (batch, seq, D) -> (tokens, D)
    _accumulate(weight, gradient.mT @ x)  # (out, tokens) @ (tokens, in)
    if bias is not None:
        _accumulate(bias, gradient.sum(0))


class DeferredWeightGradients(TorchFunctionMode):
    """A context in which `F.linear` with a trainable weight is a `LinearDeferringWeight` with the list `later`."""

    def __init__(self, later: DeferredWork) -> None:
        super().__init__()
        self.later = later

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace `F.linear`; torch calls this method in the place of each of its functions."""
        if func is F.linear:
            return self._linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _linear(self, input: Tensor, weight: nn.Parameter, bias: nn.Parameter | None = None) -> Tensor:
        if not weight.requires_grad:
            return F.linear(input, weight, bias)
        return LinearDeferringWeight.apply(input, weight, bias, self.later)  # type: ignore[return-value]


def _accumulate(parameter: nn.Parameter, gradient: Tensor) -> None:
    if parameter.requires_grad:
        gradient = gradient.to(parameter.dtype)  # narrower under autocast
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
