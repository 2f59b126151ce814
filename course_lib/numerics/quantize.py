"""Integers and signs instead of floats: int8, int4 and 1 bit, each with a scale.

An integer grid has one spacing everywhere, so it needs a scale that fits the tensor: one for all of it, or one for
each channel, so that a channel with large numbers does not take the resolution away from the others. Symmetric grids
centre on zero; affine ones shift (`zero_point`) to cover [min, max] fully.

Sources: Jacob et al. 2018 §2.1 (affine quantization); Rastegari et al. 2016 §3.1 (sign and mean of magnitudes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from course_kit.units import Bytes


@dataclass(frozen=True)
class Quantized:
    """A tensor stored as whole numbers: x ≈ scale · (values - zero_point).

    Attributes:
        values: int8 tensor of x's shape; int4 values too, one in a byte (`stored_bytes` counts two).
        scale: float32, a scalar or of x's rank with size 1 outside of the channel dim.
        zero_point: int32, shaped like `scale`; all zero for a symmetric grid.
        bits: 8 or 4.
    """

    values: Int[Tensor, "..."]
    scale: Float[Tensor, "..."]
    zero_point: Int[Tensor, "..."]
    bits: int

    def dequantize(self) -> Float[Tensor, "..."]:
        """The numbers that the grid points stand for, float32."""
        return self.scale * (self.values.int() - self.zero_point)

    @property
    def stored_bytes(self) -> Bytes:
        """What it takes to store: packed values, a 4-byte scale each, and a 1-byte zero point where there is one."""
        zero_points = self.zero_point.numel() if bool(self.zero_point.any()) else 0
        return Bytes(math.ceil(self.values.numel() * self.bits / 8) + 4 * self.scale.numel() + zero_points)


def quantize(
    x: Float[Tensor, "..."], bits: int = 8, *, channel_dim: int | None = None, symmetric: bool = True
) -> Quantized:
    """Round x to a grid of 2^bits whole numbers times a scale (nearest, ties to even).

    Args:
        x: finite floating-point tensor with at least one element.
        bits: 8 or 4.
        channel_dim: one scale for each index of this dim; None: one scale for the whole tensor.
        symmetric: grid -(2^(bits-1) - 1) … 2^(bits-1) - 1 around zero, scaled to the largest magnitude. False: all
            2^bits points, stretched over [min, max] extended to hold 0, which stays exactly 0.

    Raises:
        ValueError: another number of bits, no such dim, an empty tensor, or inf and nan in x.
    """
    if bits not in (4, 8):
        raise ValueError(f"bits={bits} given; this grid has 8 or 4 bits (for 1 bit see `quantize_sign`)")
    _check(x)
    low, high = _extremes(x.float(), channel_dim)
    top = 2 ** (bits - 1) - 1
    if symmetric:
        scale = _not_zero(torch.maximum(-low, high) / top)
        zero_point = torch.zeros_like(scale, dtype=torch.int32)
        bottom = -top
    else:
        bottom = -top - 1
        scale = _not_zero((high - low) / (top - bottom))
        zero_point = (bottom - low / scale).round().int()
    values = ((x.float() / scale).round() + zero_point).clamp(bottom, top)
    return Quantized(values.to(torch.int8), scale, zero_point, bits)


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
        bits = (self.packed[:, None] >> torch.arange(8, device=self.packed.device, dtype=torch.uint8)) & 1
        minus = bits.flatten()[: math.prod(self.shape)].view(self.shape)
        return self.scale * (1 - 2 * minus.float())

    @property
    def stored_bytes(self) -> Bytes:
        """Packed signs and a 4-byte scale each."""
        return Bytes(self.packed.numel() + 4 * self.scale.numel())


def quantize_sign(x: Float[Tensor, "..."], *, channel_dim: int | None = None) -> Signs:
    """Keep the sign of each element and one mean magnitude, for the whole tensor or for each channel.

    Raises:
        ValueError: no such dim, an empty tensor, or inf and nan in x.
    """
    _check(x)
    dims = _other_dims(x, channel_dim)
    scale = x.float().abs().mean(dim=dims, keepdim=True) if channel_dim is not None else x.float().abs().mean()
    minus = x.flatten() < 0
    rows = torch.nn.functional.pad(minus.to(torch.uint8), (0, -minus.numel() % 8)).view(-1, 8)
    weights = 2 ** torch.arange(8, device=x.device, dtype=torch.uint8)
    return Signs((rows * weights).sum(dim=1, dtype=torch.uint8), scale, tuple(x.shape))


def rms_error(x: Float[Tensor, "..."], approximation: Float[Tensor, "..."]) -> float:
    """Root of the mean squared difference, in x's own unit."""
    return float((approximation.double() - x.double()).square().mean().sqrt())


def signal_to_noise_db(x: Float[Tensor, "..."], approximation: Float[Tensor, "..."]) -> float:
    """10·log10 of the energy of x over that of the error, in decibels: each bit of precision is worth about 6 dB.

    Without any error it is inf; where x is all zero and the approximation is not, -inf.
    """
    signal, noise = rms_error(x, torch.zeros_like(x)), rms_error(x, approximation)
    if noise == 0:
        return math.inf
    return 20 * math.log10(signal / noise) if signal else -math.inf


def _check(x: Tensor) -> None:
    if not x.dtype.is_floating_point or x.numel() == 0:
        raise ValueError(f"a tensor of dtype {x.dtype} and shape {tuple(x.shape)} given; quantizing needs floats, ≥ 1")
    if not bool(x.isfinite().all()):
        raise ValueError("x holds inf or nan, and no scale fits them; remove or clamp them first")


def _other_dims(x: Tensor, channel_dim: int | None) -> tuple[int, ...]:
    """All dims but the channel's."""
    if channel_dim is None:
        return tuple(range(x.ndim))
    if not -x.ndim <= channel_dim < x.ndim:
        raise ValueError(f"channel_dim={channel_dim} given, but x has {x.ndim} dims: give 0 to {x.ndim - 1}")
    return tuple(dim for dim in range(x.ndim) if dim != channel_dim % x.ndim)


def _extremes(x: Float[Tensor, "..."], channel_dim: int | None) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Smallest and largest element, extended to include 0, for the tensor (scalars) or for each channel."""
    if channel_dim is None:
        low, high = x.aminmax()
    else:
        dims = _other_dims(x, channel_dim)
        low, high = x.amin(dim=dims, keepdim=True), x.amax(dim=dims, keepdim=True)
    return low.clamp(max=0), high.clamp(min=0)


def _not_zero(scale: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """A scale of 1 where all elements are zero (any scale would do, but 0/0 would not)."""
    return torch.where(scale == 0, torch.ones_like(scale), scale)
