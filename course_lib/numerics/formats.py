"""Float formats as one small class: the bits of the exponent, those of the fraction, and the special patterns.

A pattern of bits is read as `sign | exponent | fraction`. With e and f those two fields as whole numbers, E and F
their widths, and a constant bias,

    value = (-1)^sign · 2^(e - bias) · (1 + f / 2^F)     if e > 0   (normal numbers)
    value = (-1)^sign · 2^(1 - bias) · f / 2^F           if e = 0   (subnormal numbers and zero)

The meaning of the topmost patterns is a choice (`specials`): infinity and nan, one nan alone, or ordinary numbers.
Sources: IEEE 754-2019 §3.4 (fp16, fp32, fp64); Micikevicius et al. 2022, "FP8 formats for deep learning", Table 1
(e4m3fn, e5m2); OCP Microscaling Formats v1.0, §5.3 (fp6, fp4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from course_lib.numerics.rounding import binade, in_pieces, round_nearest, round_stochastic

Specials = Literal["ieee", "fn", "finite"]
Overflow = Literal["inf", "nan", "saturate"]
Rounding = Literal["nearest", "stochastic"]

_OVERFLOWS: dict[str, tuple[str, ...]] = {
    "ieee": ("inf", "nan", "saturate"),
    "fn": ("saturate", "nan"),
    "finite": ("saturate",),
}
"""specials → the results that are allowed for a number that is too large; the first one is the default."""


@dataclass(frozen=True)
class FloatFormat:
    """A binary float format with a sign bit.

    Attributes:
        exponent_bits: E, 1 to 11.
        fraction_bits: F, 0 to 52 (the leading 1 of a normal number is not stored).
        bias: the number that is subtracted from the exponent field; 2^(E-1) - 1 if not given.
        specials: "ieee": the top exponent means inf and nan. "fn": the topmost pattern alone means nan, and there is
            no inf. "finite": every pattern is a number.
        overflow: the result of rounding a number beyond `max`: "inf", "nan" or "saturate" (the largest finite
            number, for infinities too). If not given, "inf" for "ieee" and "saturate" for the others, as torch 2.13
            casts. (Older torch casts to float8_e4m3fn give nan: overflow="nan".)
        name: for printing, like "bf16".

    Raises:
        ValueError: no such format exists, or its numbers would not fit in a float64.
    """

    exponent_bits: int
    fraction_bits: int
    bias: int = None  # type: ignore[assignment]  # __post_init__ fills in the default
    specials: Specials = "ieee"
    overflow: Overflow = None  # type: ignore[assignment]  # the same
    name: str = ""

    def __post_init__(self) -> None:
        _check_widths(self.exponent_bits, self.fraction_bits, self.specials)
        if self.bias is None:
            object.__setattr__(self, "bias", 2 ** (self.exponent_bits - 1) - 1)
        if self.overflow is None:
            object.__setattr__(self, "overflow", _OVERFLOWS[self.specials][0])
        if self.overflow not in _OVERFLOWS[self.specials]:
            allowed = ", ".join(_OVERFLOWS[self.specials])
            raise ValueError(f"overflow={self.overflow!r} given, but specials={self.specials!r} allows only: {allowed}")
        if not 0 <= self.bias <= 1023 or self.max_exponent > 1023:
            least = max(0, self.max_exponent + self.bias - 1023)
            advice = f"give a bias from {least} to 1023" if least <= 1023 else "give fewer exponent bits"
            raise ValueError(f"bias={self.bias} puts numbers of {self} outside of float64's range; {advice}")
        if not self.name:
            object.__setattr__(self, "name", f"e{self.exponent_bits}m{self.fraction_bits}")

    def __str__(self) -> str:
        return self.name or f"e{self.exponent_bits}m{self.fraction_bits}"

    @property
    def bits(self) -> int:
        """Width of a pattern: 1 + E + F."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def eps(self) -> float:
        """Distance from 1 to the next number, 2^-F: half of it bounds the relative error of rounding."""
        return 2.0**-self.fraction_bits

    @property
    def min_normal(self) -> float:
        """Smallest positive number with full precision, 2^(1 - bias)."""
        return 2.0 ** (1 - self.bias)

    @property
    def min_subnormal(self) -> float:
        """Smallest positive number, 2^(1 - bias - F); equals `min_normal` where F = 0."""
        return math.ldexp(1.0, 1 - self.bias - self.fraction_bits)

    @property
    def max_pattern(self) -> int:
        """The pattern of the largest finite number: the one below the special ones."""
        inf = (2**self.exponent_bits - 1) << self.fraction_bits  # exponent bits all 1, fraction 0
        everything = 2 ** (self.exponent_bits + self.fraction_bits) - 1
        return {"ieee": inf - 1, "fn": everything - 1, "finite": everything}[self.specials]

    @property
    def max_exponent(self) -> int:
        """The exponent of the largest finite number, which lies in [2^max_exponent, 2^(max_exponent + 1))."""
        return (self.max_pattern >> self.fraction_bits) - self.bias

    @property
    def max(self) -> float:
        """Largest finite number."""
        fraction = self.max_pattern & (2**self.fraction_bits - 1)
        return math.ldexp(1 + fraction * self.eps, self.max_exponent)

    def spacing(self, x: Float[Tensor, "..."] | float) -> Float[Tensor, "..."]:
        """Distance between neighbours at x (one *ulp*, unit in the last place): it doubles with every power of two.

        Below `min_normal` the distance stays `min_subnormal`, beyond `max` that of `max`; for inf and nan it is nan.
        """
        x = self._working(x)
        return torch.where(x.isfinite(), self._spacing(x), torch.nan)

    @torch.no_grad()
    def round(
        self, x: Float[Tensor, "..."] | float, rounding: Rounding = "nearest", generator: torch.Generator | None = None
    ) -> Float[Tensor, "..."]:
        """Round each element of x once, to a number of this format.

        The input is taken as it is: a float64 is not first rounded to float32. (torch's casts from float64 to 16 and
        8 bits do that, and in rare cases the two roundings together end at the other neighbour.)

        Args:
            x: floating-point tensor of any shape, or a number; nan and -0 stay what they are.
            rounding: "nearest" (ties to even) or "stochastic" (unbiased; see `rounding.round_stochastic`).
            generator: randomness of "stochastic", on x's device; the same seed gives the same result.

        Returns:
            A tensor of x's shape: float32 where x has at most 32 bits and float32 holds all numbers of this format,
            float64 otherwise. No gradient flows through it.

        Raises:
            ValueError: x is not floating-point, or `rounding` has another name.
        """
        if rounding not in ("nearest", "stochastic"):
            raise ValueError(f'rounding={rounding!r} given; it must be "nearest" or "stochastic"')
        x = self._working(x).contiguous()
        rounded = torch.empty_like(x)
        for source, target in in_pieces(x.view(-1), rounded.view(-1)):
            if rounding == "nearest":
                round_nearest(source, self._spacing(source), out=target)
            else:
                round_stochastic(source, self._spacing(source), generator, out=target)
            self._overflow_(target)
        return rounded

    def encode(self, x: Float[Tensor, "..."] | float) -> Int[Tensor, "..."]:
        """The bit patterns of x after rounding to nearest, as int64 (for 64-bit formats the sign bit is int64's own).

        Raises:
            ValueError: x holds a nan and this format has none.
        """
        value = self.round(x).double()
        if self.specials == "finite" and bool(value.isnan().any()):
            raise ValueError(f"x holds nan, and {self} has no pattern for it; remove the nan before encoding")
        # A float64 with another bias: one exact multiplication moves every exponent, subnormals included, into place.
        moved = value.abs() * 2.0 ** (self.bias - 1023)
        magnitude = moved.view(torch.int64) >> (52 - self.fraction_bits)
        magnitude = torch.where(value.isinf(), self.max_pattern + 1, magnitude)  # behind the largest number
        magnitude = torch.where(value.isnan(), self._nan_pattern, magnitude)
        return magnitude | (value.signbit().long() << (self.bits - 1))

    def decode(self, patterns: Integer[Tensor, "..."] | int) -> Float[Tensor, "..."]:
        """The values of bit patterns, exact, as float64.

        Args:
            patterns: integers of any width, from 0 to 2^bits - 1, or the same bits as negative signed integers, so
                that `BF16.decode(x.view(torch.int16))` works.

        Raises:
            ValueError: a pattern has more bits than the format.
        """
        patterns = torch.as_tensor(patterns).long()
        if patterns.numel() and self.bits < 64:
            low, high, top = int(patterns.min()), int(patterns.max()), 2**self.bits - 1
            if high > top or low < -(top // 2 + 1):
                raise ValueError(f"patterns from {low} to {high} given; {self} has {self.bits} bits: give 0 to {top}")
        magnitude = patterns & (2 ** (self.bits - 1) - 1)  # all bits but the sign
        # encode() in reverse: read the fields as a float64, then correct the bias.
        value = (magnitude << (52 - self.fraction_bits)).view(torch.float64) * 2.0 ** (1023 - self.bias)
        beyond = torch.inf if self.specials == "ieee" else torch.nan
        value = torch.where(magnitude == self.max_pattern + 1, beyond, value)
        value = torch.where(magnitude > self.max_pattern + 1, torch.nan, value)
        negative = (patterns >> (self.bits - 1)) & 1
        return torch.where(negative == 1, -value, value)

    def neighbours(self, x: Float[Tensor, "..."] | float) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """The numbers of this format next to x, (below, above), as float64; x itself is neither of them.

        Beyond the largest number stands inf where the format has one, nan where it has none.
        """
        x = torch.as_tensor(x, dtype=torch.float64)
        ends = replace(self, overflow="inf") if self.specials == "ieee" else self  # inf is a neighbour, nan is none
        nearest = ends.round(torch.where(x.isnan(), 0.0, x))
        place = ends.encode(nearest.abs())  # patterns without a sign count the numbers from zero upwards
        place = torch.where(x < 0, -place, place)  # one line of numbers, zero in the middle
        below = torch.where(nearest < x, nearest, self._at(place - 1))
        above = torch.where(nearest > x, nearest, self._at(place + 1))
        return torch.where(x.isnan(), x, below), torch.where(x.isnan(), x, above)

    @property
    def _nan_pattern(self) -> int:
        """The nan that encode() writes: the quiet one of IEEE 754 §6.2.1, or the only one."""
        quiet = self.max_pattern + 1 + 2 ** max(0, self.fraction_bits - 1)
        return quiet if self.specials == "ieee" else self.max_pattern + 1

    def _at(self, place: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The number `place` steps away from zero; nan beyond the last one."""
        last = self.max_pattern + (self.specials == "ieee")
        value = self.decode(place.abs().clamp(max=last))
        return torch.where(place.abs() > last, torch.nan, torch.where(place < 0, -value, value))

    def _working(self, x: Float[Tensor, "..."] | float) -> Float[Tensor, "..."]:
        """x in the smaller of float32 and float64 that holds both x and every number of this format."""
        if not isinstance(x, Tensor):
            x = torch.tensor(x, dtype=torch.float64)
        if not x.dtype.is_floating_point:
            raise ValueError(f"x has dtype {x.dtype}; a float format rounds floating-point tensors: pass x.double()")
        in_float32 = self.fraction_bits <= 23 and self.bias <= 127 and self.max_exponent <= 127
        return x.to(torch.float32 if in_float32 and x.element_size() <= 4 else torch.float64)

    def _spacing(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """`spacing` without the checks; finite for inf and nan, so that rounding keeps those."""
        return binade(x).clamp_(self.min_normal, 2.0**self.max_exponent).mul_(self.eps)  # subnormals share one spacing

    def _overflow_(self, rounded: Float[Tensor, "..."]) -> None:
        """Replace numbers beyond the largest one, in place."""
        if self.overflow == "saturate":
            rounded.clamp_(-self.max, self.max)  # nan stays nan
            return
        low, high = rounded.aminmax() if rounded.numel() else (torch.zeros(()), torch.zeros(()))
        if not (low >= -self.max and high <= self.max):  # also true when there is a nan: then look closer
            beyond = torch.inf if self.overflow == "inf" else torch.nan
            rounded.masked_fill_(rounded > self.max, beyond).masked_fill_(rounded < -self.max, -beyond)


def _check_widths(exponent_bits: int, fraction_bits: int, specials: str) -> None:
    """Refuse widths that make no format, and say which do."""
    if specials not in _OVERFLOWS:
        raise ValueError(f'specials={specials!r} given; it must be "ieee", "fn" or "finite"')
    widths = f"exponent_bits={exponent_bits}, fraction_bits={fraction_bits}"
    whole = isinstance(exponent_bits, int) and isinstance(fraction_bits, int)
    if not whole or not 1 <= exponent_bits <= 11 or not 0 <= fraction_bits <= 52:
        raise ValueError(f"{widths} given; to fit in a float64, give 1 to 11 exponent bits and 0 to 52 fraction bits")
    if specials == "ieee" and (exponent_bits < 2 or fraction_bits < 1):
        raise ValueError(f'{widths} leave no room for inf and nan; give at least 2 and 1, or specials="finite"')
    if specials == "fn" and exponent_bits + fraction_bits < 2:
        raise ValueError('1 exponent bit and no fraction leave no number beside nan; give more, or specials="finite"')


FP64 = FloatFormat(11, 52, name="fp64")
FP32 = FloatFormat(8, 23, name="fp32")
TF32 = FloatFormat(8, 10, name="tf32")
"""The 19 bits that tensor cores keep of an fp32 factor, held in 32."""
FP16 = FloatFormat(5, 10, name="fp16")
BF16 = FloatFormat(8, 7, name="bf16")
FP8_E4M3FN = FloatFormat(4, 3, specials="fn", name="fp8_e4m3fn")
FP8_E5M2 = FloatFormat(5, 2, name="fp8_e5m2")
FP6_E3M2 = FloatFormat(3, 2, specials="finite", name="fp6_e3m2")
FP6_E2M3 = FloatFormat(2, 3, specials="finite", name="fp6_e2m3")
FP4_E2M1 = FloatFormat(2, 1, specials="finite", name="fp4_e2m1")
FORMATS = (FP64, FP32, TF32, FP16, BF16, FP8_E4M3FN, FP8_E5M2, FP6_E3M2, FP6_E2M3, FP4_E2M1)
"""The formats that deep learning uses, widest first."""

TORCH_DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3fn": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""Format name → torch's dtype, where torch can cast to it. (`torch.float4_e2m1fn_x2` exists, without casts.)"""
