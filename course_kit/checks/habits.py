"""An answer as training calls it: again and again in one process, with whatever numbers and memory come.

Each time the numbers are others, every second time tensors lie across in memory, the leaves have gradients already,
fresh memory holds NaN, the next call comes before the backward pass, and the gradient that comes in is compared before
and after.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from course_kit.checks.check import call, close
from course_kit.checks.failed import fail
from course_kit.checks.side_effects import unchanged

THERE = 3.0
"""The gradient that each leaf has before a call: a sum, which a backward pass adds to."""


LEFT = "what a call leaves behind for the next one, and what stands in memory that it takes anew"


class Unfilled(TorchFunctionMode):
    """A mode under which uninitialized memory holds NaN, as such memory may on any day."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if "empty" in getattr(func, "__name__", "") and made.is_floating_point():
            made.detach().fill_(math.nan)  # detached, so that a leaf is filled, too
        return made


class Case(NamedTuple):
    """One call, its right result, and for the place of each leaf in `args` the gradient that a backward pass adds."""

    args: Sequence[Any]
    right: Tensor
    gradients: Mapping[int, Tensor] = {}
    upstream: Tensor | None = None


def as_in_training(
    answer: Callable, case: Callable[..., Case], ways: Sequence[dict], *, operations: int = 200, look: str = ""
) -> None:
    """Call an answer once for each of `ways` (keyword arguments of `case`), in this process, and compare every result.

    The backward pass of a call comes after the next call. On ranks: `check.on_ranks(as_in_training, answer, case,
    ways)`. Two ways at least should have the same shapes.
    """
    close_by = functools.partial(close, operations=operations, look=look or LEFT, silent=True)

    def both_passes(turn: int, way: dict) -> Iterator[None]:
        args, right, gradients, upstream = case(**way)
        told = ", ".join(f"{name} {value}" for name, value in way.items())
        what = f"call {turn + 1} in one process ({told}{', laid across in memory' if turn % 2 else ''})"
        args = [across(each) if turn % 2 and isinstance(each, Tensor) else each for each in args]
        for place in gradients:
            args[place].grad = torch.full_like(args[place], THERE)
        with Unfilled():
            result = call(answer, *args, look=look)
        close_by(result, right, what)
        if gradients and not result.requires_grad:
            fail(f"{what}: the result has a gradient", came="none: the thread to the leaves is cut", look=look)
        yield
        if gradients:
            backward(result, upstream, look=look)
        for place, grad in gradients.items():
            leaf = args[place]
            became = f"{what}: .grad of argument {place + 1}, in which {THERE:g} stood before: what came in addition"
            close_by(None if leaf.grad is None else leaf.grad - THERE, grad, became)

    nothing: Iterator[None] = iter(())
    calls = [both_passes(turn, way) for turn, way in enumerate(ways)]
    for before, this in itertools.pairwise([nothing, *calls, nothing]):
        next(this, None)
        next(before, None)


def backward(result: Tensor, upstream: Tensor | None = None, look: str = "") -> None:
    """Call `result.backward(upstream)` while uninitialized memory holds NaN; `upstream` must stay as it is."""
    upstream = torch.ones_like(result) if upstream is None else upstream
    run = torch.autograd.Variable._execution_engine.run_backward  # inside of `Tensor.backward` the mode is off
    with Unfilled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that a gradient has other strides than its leaf
        with unchanged("the gradient that comes into backward, afterwards", {"grad": upstream}, "random", look):
            run((result,), (upstream,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def across(tensor: Tensor) -> Tensor:
    """The same numbers, by columns and in every second place of memory, with NaN between them; a leaf stays a leaf."""
    turned = tensor.detach().movedim(0, -1) if tensor.dim() else tensor.detach()
    between = torch.full_like(turned, math.nan) if tensor.is_floating_point() else turned
    laid = torch.stack([turned, between], -1)[..., 0]
    return (laid.movedim(-1, 0) if tensor.dim() else laid).requires_grad_(tensor.requires_grad)
