"""Integers and signs instead of floats: int8, int4 and 1 bit, each with a scale.

An integer grid has one spacing everywhere, so the grid needs a scale that fits the tensor: one for the whole tensor, or
one for each channel, so that a channel with large numbers does not take the resolution away from the others. The grids
here are symmetric: they centre on zero, and zero stays exactly zero.

Sources: Jacob et al. 2018 §2.1 (with zero point 0); Rastegari et al. 2016 §3.1 (sign and mean of magnitudes).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor


@dataclass(frozen=True)
class Quantized:
    """A tensor stored as whole numbers: x ≈ scale · values.

    Attributes:
        values: int8 tensor of x's shape; int4 values too, one in a byte.
        scale: float32, a scalar or of x's rank with size 1 outside of the channel dim.
    """

    values: Int[Tensor, "..."]
    scale: Float[Tensor, "..."]

    def dequantize(self) -> Float[Tensor, "..."]:
        """The numbers that the grid points stand for, float32."""
        return self.scale * self.values


def quantize(x: Float[Tensor, "..."], bits: int = 8, *, channel_dim: int | None = None) -> Quantized:
    """Round x to the grid -(2^(bits-1) - 1) … 2^(bits-1) - 1 times a scale (nearest, ties to even).

    Args:
        x: finite floating-point tensor with at least one element; its largest magnitude becomes the grid's end.
        bits: 8 or 4.
        channel_dim: one scale for each index of this dim; None: one scale for the whole tensor.

    Raises:
        ValueError: another number of bits, no such dim, an empty x, or inf, nan or a number beyond fp32 in x.
    """
    if bits not in (4, 8):
        raise ValueError(f"bits={bits} given; this grid has 8 or 4 bits (for 1 bit see `quantize_sign`)")
    end = 2 ** (bits - 1) - 1  # 127, not 128: -128 would have no partner at the other end
    scale = _magnitude(x, channel_dim, torch.amax) / end
    scale = torch.where(scale == 0, 1.0, scale)  # any scale fits zeros, but 0 / 0 is nan
    values = (x.float() / scale).round().clamp(-end, end)  # beyond the end where the scale is subnormal, so coarse
    return Quantized(values.to(torch.int8), scale)


@dataclass(frozen=True)
class Signs:
    """A tensor stored as one bit for each element: x ≈ scale · (+1 or -1).

    Attributes:
        packed: uint8, eight signs in a byte, lowest bit first; a set bit means minus.
        scale: float32 scalar or of x's rank: the mean of |x|, which minimises the squared error.
        shape: shape of x.
    """

    packed: UInt8[Tensor, " packed"]
    scale: Float[Tensor, "..."]
    shape: tuple[int, ...]

    def dequantize(self) -> Float[Tensor, "..."]:
        """+scale or -scale for each element, float32."""
        bits = (self.packed[:, None] >> torch.arange(8, device=self.packed.device, dtype=torch.uint8)) & 1  # (bytes, 8)
        minus = bits.flatten()[: math.prod(self.shape)].view(self.shape)  # without the last byte's padding
        return self.scale * (1 - 2 * minus.float())


def quantize_sign(x: Float[Tensor, "..."], *, channel_dim: int | None = None) -> Signs:
    """Keep the sign of each element and one mean magnitude, for the whole tensor or for each channel.

    Raises:
        ValueError: no such dim, an empty tensor, or inf, nan or a number beyond fp32 in x.
    """
    scale = _magnitude(x, channel_dim, partial(torch.mean, dtype=torch.float64)).float()  # sums of any size fit
    minus = x.flatten() < 0
    rows = torch.nn.functional.pad(minus.to(torch.uint8), (0, -minus.numel() % 8)).view(-1, 8)  # up to whole bytes
    weights = 2 ** torch.arange(8, device=x.device, dtype=torch.uint8)
    return Signs((rows * weights).sum(dim=1, dtype=torch.uint8), scale, tuple(x.shape))


def rms_error(x: Float[Tensor, "..."], approximation: Float[Tensor, "..."]) -> float:
    """Root of the mean squared difference, in x's own unit."""
    return float((approximation.double() - x.double()).square().mean().sqrt())


def signal_to_noise_db(x: Float[Tensor, "..."], approximation: Float[Tensor, "..."]) -> float:
    """10·log10 of the energy of x over that of the error, in decibels: each bit of precision is worth about 6 dB.

    The ratio is inf without any error, and -inf where x is all zero and the approximation is not.
    """
    signal, noise = rms_error(x, torch.zeros_like(x)), rms_error(x, approximation)
    if noise == 0:
        return math.inf
    return 20 * math.log10(signal / noise) if signal else -math.inf  # 20: a root is half a power


def _magnitude(x: Tensor, channel_dim: int | None, reduce: Callable[..., Tensor]) -> Tensor:
    """|x|, reduced over all dims but the channel's, or over all."""
    if not x.dtype.is_floating_point or x.numel() == 0:
        raise ValueError(f"a tensor of dtype {x.dtype} and shape {tuple(x.shape)} given; quantizing needs floats, ≥ 1")
    if not bool(x.float().isfinite().all()):
        raise ValueError("x holds inf, nan or what fp32 cannot hold, and no scale fits it; remove or clamp it first")
    if channel_dim is None:
        return reduce(x.float().abs())
    if not -x.ndim <= channel_dim < x.ndim:
        raise ValueError(f"channel_dim={channel_dim} given, but x has {x.ndim} dims: give 0 to {x.ndim - 1}")
    dims = [dim for dim in range(x.ndim) if dim != channel_dim % x.ndim]
    # no dims would mean all; a vector's elements are channels themselves
    return reduce(x.float().abs(), dim=dims, keepdim=True) if dims else x.float().abs()
