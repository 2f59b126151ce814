"""The backward pass of linear layers in two halves: B sends gradients through the layers, W makes the weights' own.

For y = x Wᵀ with the gradient g of y, the layer before waits for g W; nobody waits for gᵀ x. Autograd makes both at
once. Inside `DeferredWeightGradients` it makes the first and puts the second on a list, which holds on to x and g until
the work is done. Other layers have few weights and do all in B. Qi et al. 2023, §2.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.overrides import TorchFunctionMode

DeferredWork = list[partial[None]]
"""Each call adds one layer's weight gradient to `.grad`."""


class LinearDeferringWeight(Function):
    """`F.linear` whose backward pass leaves the gradients of weight and bias for later."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, later: DeferredWork) -> Tensor:
        """x Wᵀ + b."""
        ctx.save_for_backward(x, weight)
        ctx.weight, ctx.bias, ctx.later = weight, bias, later
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        """B: the input's gradient. W goes on the list."""
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        ctx.later.append(partial(add_weight_gradients, ctx.weight, ctx.bias, x, gradient))
        return gradient @ weight if ctx.needs_input_grad[0] else None, None, None, None


def add_weight_gradients(weight: nn.Parameter, bias: nn.Parameter | None, x: Tensor, gradient: Tensor) -> None:
    """W: gᵀ x for the weight, the sum of g over all tokens for the bias; both add up in `.grad`."""
    x, gradient = x.flatten(0, -2), gradient.flatten(0, -2)
    _accumulate(weight, gradient.mT @ x)
    if bias is not None:
        _accumulate(bias, gradient.sum(0))


class DeferredWeightGradients(TorchFunctionMode):
    """Inside, every `F.linear` with a trainable weight becomes a `LinearDeferringWeight` that writes on `later`."""

    def __init__(self, later: DeferredWork) -> None:
        super().__init__()
        self.later = later

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called for every function of torch."""
        if func is F.linear:
            return self._linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _linear(self, input: Tensor, weight: nn.Parameter, bias: nn.Parameter | None = None) -> Tensor:
        if not weight.requires_grad:
            return F.linear(input, weight, bias)
        return LinearDeferringWeight.apply(input, weight, bias, self.later)  # type: ignore[return-value]


def _accumulate(parameter: nn.Parameter, gradient: Tensor) -> None:
    if parameter.requires_grad:
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
