"""Known-wrong versions of `recompute`: each looks right from far away."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.train.recompute import recompute


def keeps_everything(fn: Callable[..., Any], *args: Any) -> Any:
    """Right gradients, and not a byte saved."""
    return fn(*args)


def keeps_every_layer(fn: Any, *args: Any) -> Any:
    """Ignores K: keeps the input of each layer, whatever the segment."""
    layers = fn.args[0] if isinstance(fn, functools.partial) else [fn]
    for layer in layers:
        args = (recompute(layer, *args),)
    return args[0]


def draws_again(fn: Callable[..., Any], *args: Any) -> Any:
    """Dropout drops other elements the second time."""
    return recompute(fn, *args, preserve_rng=False)


class Textbook(torch.autograd.Function):
    """The first version that one writes, with what is usually left out left out."""

    @staticmethod
    def forward(ctx: Any, fn: Callable[..., Any], tidy: bool, *inputs: Tensor) -> Tensor:
        ctx.fn, ctx.tidy, ctx.rng = fn, tidy, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return fn(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]
        after = torch.get_rng_state()
        torch.set_rng_state(ctx.rng)
        with torch.enable_grad():
            result = ctx.fn(*inputs)
        if ctx.tidy:
            torch.set_rng_state(after)
        torch.autograd.backward(result, gradients)
        return (None, None, *(tensor.grad for tensor in inputs))


def drops_parameter_gradients(fn: Callable[..., Any], *args: Tensor) -> Any:
    """No gradient for the parameters of a function whose arguments require none; autocast is forgotten, too."""
    return Textbook.apply(fn, True, *args)


def forgets_autocast(fn: Callable[..., Any], *args: Tensor) -> Any:
    """Runs in fp32 the second time."""
    ticket = torch.empty(0, requires_grad=True)
    return Textbook.apply(lambda _ticket, *rest: fn(*rest), True, ticket, *args)


def leaves_the_random_state_rewound(fn: Callable[..., Any], *args: Tensor) -> Any:
    """The step after this one draws the numbers of this one again."""
    ticket = torch.empty(0, requires_grad=True)
    return Textbook.apply(lambda _ticket, *rest: fn(*rest), False, ticket, *args)


ALL = [
    keeps_everything,
    keeps_every_layer,
    draws_again,
    drops_parameter_gradients,
    forgets_autocast,
    leaves_the_random_state_rewound,
]
