"""Gradients between `backward` and `step`: measured, scaled, clipped. A factor may wait for `step`: `grad_scale.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from course_lib.numerics import FloatFormat
from course_lib.train.optim import Optimizer


def gradients_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The gradients of all parameters that have one."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def multiply_gradients(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Multiply all gradients: at the next `step` for an optimizer of this course, at once for another.

    Raises:
        ValueError: an optimizer that is not of this course has fp16 gradients, and the factor is below 1: the small
            numbers that loss scaling has saved would underflow now. Or gradients have changed under a pending factor.
    """
    if isinstance(optimizer, Optimizer):
        optimizer.pending_grad_scale = optimizer.pending_grad_scale.times(factor, gradients_of(optimizer))
        return
    gradients = gradients_of(optimizer)
    if factor < 1 and any(gradient.dtype == torch.float16 for gradient in gradients):
        raise ValueError(
            f"fp16 gradients times {factor:.3g} would lose their small numbers; keep the weights in fp32 "
            "(CastPolicy casts for each operation), or use MasterWeights, which multiplies in fp32"
        )
    for gradient in gradients:
        gradient.mul_(factor)


def gradient_norm(optimizer: torch.optim.Optimizer) -> float:
    """The length of all gradients as one vector, with their pending factor; summed in fp32 or wider."""
    gradients = gradients_of(optimizer)
    norms = [torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32)) for g in gradients]
    length = float(torch.stack(norms).norm()) if norms else 0.0  # the norm of norms: no copy of all in one vector
    return length * (optimizer.pending_grad_scale.factor if isinstance(optimizer, Optimizer) else 1)


def clip_gradients(optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Shorten the gradient to `max_norm` where it is longer; return its length before (Pascanu et al. 2013, Alg. 1).

    All gradients are multiplied by one number, so the direction stays. With a loss scaler, unscale first: the scaled
    gradient is longer by the scale, so it would always be cut, to `max_norm / scale`. The numbers are those of
    `torch.nn.utils.clip_grad_norm_`.
    """
    length = gradient_norm(optimizer)
    multiply_gradients(optimizer, min(max_norm / (length + 1e-6), 1.0))  # nan first: min(1.0, nan) would be 1.0
    return length


@dataclass(frozen=True)
class CastCounts:
    """Counts of numbers, none of them 0, by their fate in a rounding to a narrower format.

    Attributes:
        flushed: numbers so small that they become 0.
        subnormal: numbers that stay, with fewer digits the smaller they are.
        normal: numbers that stay, with all digits of the format.
        overflowed: numbers so large that they become inf.
    """

    flushed: int
    subnormal: int
    normal: int
    overflowed: int

    @property
    def total(self) -> int:
        """The sum of the four counts."""
        return self.flushed + self.subnormal + self.normal + self.overflowed


class GradientSizes:
    """The absolute values of many numbers in order, so that counting the losses of a format takes a few look-ups.

    Numbers that are 0 before any rounding (the row of a token that did not occur) are left out.

    Args:
        gradients: finite floating-point tensors of any shapes; their values are taken together.

    Raises:
        ValueError: there is no number but 0, or there is inf or nan.
    """

    def __init__(self, gradients: Iterable[Float[Tensor, "..."]]) -> None:
        flat = (gradient.detach().float().abs().flatten().cpu() for gradient in gradients)
        sizes = torch.cat([torch.zeros(0), *flat])
        sizes = sizes[sizes != 0]
        if sizes.numel() == 0 or not bool(sizes.isfinite().all()):
            raise ValueError(
                f"{sizes.numel()} numbers that are not 0 given, {int((~sizes.isfinite()).sum())} of them inf or nan; "
                "a histogram needs some, all finite: take the gradients of a step in fp32"
            )
        self.sorted: Float[Tensor, " n"] = sizes.sort().values.double()

    def cast(self, number_format: FloatFormat, scale: float = 1.0) -> CastCounts:
        """Count where all numbers, multiplied by `scale`, would end in a cast; nothing is cast.

        Rounding to nearest sends up to half of the smallest number to 0, and from half a spacing beyond the largest one
        everything to inf (ties to even, IEEE 754 §4.3.1).

        Args:
            number_format: a format with inf (`specials="ieee"`), such as FP16, BF16, FP8_E5M2.
            scale: a power of two, so that multiplying rounds nothing.

        Raises:
            ValueError: a format without inf, or a scale that is no power of two.
        """
        if number_format.specials != "ieee":
            raise ValueError(f"{number_format} has no inf; give a format that has, such as FP16")
        if scale <= 0 or torch.frexp(torch.tensor(scale, dtype=torch.float64)).mantissa != 0.5:
            raise ValueError(f"scale={scale} given; it must be a power of two, such as 2.0**16")
        half = number_format.min_subnormal / 2
        beyond = number_format.max + number_format.spacing(number_format.max).item() / 2
        flushed = self._below(half / scale, or_equal=True)  # a tie goes to the even neighbour, 0
        not_normal = self._below((number_format.min_normal - half) / scale)  # from there on, numbers become normal
        finite = self._below(beyond / scale)  # limits are divided, not all numbers multiplied: exact for powers of two
        return CastCounts(flushed, not_normal - flushed, finite - not_normal, self.sorted.numel() - finite)

    def binades(self) -> dict[int, int]:
        """k → how many numbers lie from 2^k up to, but not including, 2^(k+1); without gaps from first to last."""
        exponents = torch.frexp(self.sorted).exponent - 1  # frexp's mantissa is from 0.5 up to 1, ours from 1 up to 2
        first = int(exponents[0])
        return {first + place: count for place, count in enumerate(torch.bincount(exponents - first).tolist())}

    def _below(self, limit: float, or_equal: bool = False) -> int:
        return int(torch.searchsorted(self.sorted, limit, right=or_equal))


@contextmanager
def record_flowing_gradients(model: nn.Module) -> Iterator[list[Tensor]]:
    """Keep the gradients of each layer's result (a layer: a module without parts), most of which die in `backward`.

    A layer whose result is no tensor (an LSTM's is a tuple) is passed over.

        with record_flowing_gradients(model) as flowing:
            model(*batch).backward()

    Yields:
        A list that fills during `backward`, from the last layer to the first. Memory: a copy of each.
    """
    flowing: list[Tensor] = []

    def watch(_: nn.Module, __: object, result: object) -> None:
        if isinstance(result, Tensor) and result.requires_grad:
            result.register_hook(lambda gradient: flowing.append(gradient.detach().clone()))  # autograd adds in place

    hooks = [layer.register_forward_hook(watch) for layer in model.modules() if not any(layer.children())]
    try:
        yield flowing
    finally:
        for hook in hooks:
            hook.remove()
