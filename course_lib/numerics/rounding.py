"""Rounding to a grid: to the nearest point, or up and down by chance.

The numbers that a float format holds lie on a grid whose spacing doubles at every power of two. So rounding takes
three steps, whatever the format: find the spacing around x, count how many spacings x is away from zero, and make
that count a whole number. `formats.py` knows the spacings; this file makes counts whole.

The arithmetic is exact: spacings are powers of two, and dividing by a power of two loses nothing. (It relies on
subnormal numbers, so leave `torch.set_flush_denormal` off.)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

EXPONENT_FIELD = {
    torch.float32: (torch.int32, 0x7F80_0000),
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000),
}
"""Working dtype → (integer type of the same width, the bits of the exponent field)."""

PIECE = 2**17
"""Elements that are rounded at a time on a CPU: intermediate results then stay in its cache (about twice as fast)."""


def binade(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The largest power of two that is not above |x|, for float32 or float64.

    Keeping the exponent bits and clearing sign and fraction gives exactly that number. Zero and numbers that are
    subnormal in x's own dtype give 0; inf and nan give inf.
    """
    integers, field = EXPONENT_FIELD[x.dtype]
    return (x.view(integers) & field).view(x.dtype)  # views: the same bits, read as an integer


def round_nearest(
    x: Float[Tensor, "..."], spacing: Float[Tensor, "..."], *, out: Tensor | None = None
) -> Float[Tensor, "..."]:
    """The multiple of `spacing` nearest to x; a tie goes to the even multiple (IEEE 754 §4.3.1)."""
    return torch.div(x, spacing, out=out).round_().mul_(spacing)


def round_stochastic(
    x: Float[Tensor, "..."], spacing: Float[Tensor, "..."], generator: torch.Generator | None = None, *,
    out: Tensor | None = None,
) -> Float[Tensor, "..."]:  # fmt: skip
    """One of the two multiples of `spacing` around x, by chance: the nearer one is the likelier.

    A number that lies a quarter of the way up is rounded up once in four times, so the *expected* result is x itself
    (Gupta et al. 2015, §3.1). Multiples of `spacing` stay the same.

    Args:
        x: the tensor to round; inf and nan are kept.
        spacing: powers of two, broadcastable to x.
        generator: source of randomness on x's device; the global one if absent.
        out: tensor for the result, of x's shape and dtype; a new one if absent.
    """
    steps = x.abs().div_(spacing)
    below = steps.floor()  # spacings below |x|, a whole number
    # 53 random bits: with float32's 24, small fractions would be rounded up too often.
    draw = torch.rand(x.shape, dtype=torch.float64, device=x.device, generator=generator)
    up = draw < steps - below  # the fraction is the chance
    return torch.copysign(below.add_(up).mul_(spacing), x, out=out)


def in_pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same stretch of several flat tensors of one size, piece by piece (one piece on a GPU)."""
    size = PIECE if tensors[0].device.type == "cpu" else max(1, tensors[0].numel())
    return zip(*(tensor.split(size) for tensor in tensors), strict=True)
