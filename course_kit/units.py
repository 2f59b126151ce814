"""Bytes, FLOPs, seconds and FLOP/s that know their unit.

A number without a unit is how a 175-billion-parameter model came to weigh "316.2 GB" on a slide. Here a byte count
is a `Bytes`; it prints in the unit that you ask for, and GB (10^9) is never printed for GiB (2^30).

>>> model = Bytes(2_000_000_000)
>>> f"{model:GB} is {model:GiB}"
'2.00 GB is 1.86 GiB'
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Self

_BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_DECIMAL_BYTES = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_FLOP = {"FLOP": 1, "kFLOP": 10**3, "MFLOP": 10**6, "GFLOP": 10**9, "TFLOP": 10**12, "PFLOP": 10**15, "EFLOP": 10**18}
_SPEC = re.compile(r"^(?:\.(?P<digits>\d+))?(?P<unit>[A-Za-zµ][A-Za-zµ/\-]*)?$")


class Quantity:
    """The base of `Bytes`, `Flops`, `Seconds` and their kin: unit-aware printing, and sums that keep their unit.

    `format(q, ".1GiB")` prints one digit in GiB; `format(q, "GiB")` prints two. Without a unit, the largest one of
    the default family that leaves a number of at least 1 is taken. Any other format spec goes to the number itself
    (`f"{q:,d}"` prints the bare integer).

    Raises:
        ValueError: the format names a unit that this quantity does not have.
    """

    units: ClassVar[dict[str, float]]
    auto_units: ClassVar[tuple[str, ...]] = ()  #: the default family, from small to large; all units where it is empty

    if TYPE_CHECKING:  # every subclass is also an int or a float

        def __new__(cls, value: object = 0) -> Self: ...
        def __float__(self) -> float: ...
        def __int__(self) -> int: ...

    def to(self, unit: str) -> float:
        """This quantity as a bare number of `unit` (`Bytes(2048).to("KiB") == 2.0`)."""
        if unit not in self.units:
            raise ValueError(f"{type(self).__name__} has no unit {unit!r}; it has {', '.join(self.units)}")
        return float(self) / self.units[unit]  # type: ignore[arg-type]

    def best_unit(self) -> str:
        """The largest default unit in which this quantity is at least 1, or else the smallest one."""
        family = self.auto_units or tuple(self.units)
        return next((unit for unit in reversed(family) if abs(self.to(unit)) >= 1), family[0])

    def __format__(self, spec: str) -> str:
        match = _SPEC.match(spec)
        if match is None or (match["unit"] and match["unit"] not in self.units and len(match["unit"]) == 1):
            return super().__format__(spec)
        unit = match["unit"] or self.best_unit()
        value = self.to(unit)
        whole = self.units[unit] == 1 and value.is_integer() and match["digits"] is None
        digits = 0 if whole else int(match["digits"] or 2)
        return f"{value:,.{digits}f} {unit}".rstrip()

    def __repr__(self) -> str:
        return format(self, "")

    __str__ = __repr__

    def __add__(self, other: object) -> Self:
        return self._same(super().__add__(other), other)  # type: ignore[misc]

    __radd__ = __add__

    def __sub__(self, other: object) -> Self:
        return self._same(super().__sub__(other), other)  # type: ignore[misc]

    def __mul__(self, other: object) -> Self:
        return self._scaled(super().__mul__(other), other)  # type: ignore[misc]

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> Self:
        return self._scaled(super().__floordiv__(other), other)  # type: ignore[misc]

    def _same(self, value: object, other: object) -> Self:
        """Wrap a sum; adding seconds to bytes is refused."""
        if isinstance(other, Quantity) and other.units is not self.units:
            raise TypeError(f"cannot add or subtract {type(self).__name__} and {type(other).__name__}")
        return value if value is NotImplemented else type(self)(value)  # type: ignore[call-arg, return-value]

    def _scaled(self, value: object, other: object) -> Self:
        """Wrap a product with a plain number; the product or quotient of two quantities is a plain number."""
        if value is NotImplemented or isinstance(other, Quantity):
            return value  # type: ignore[return-value]
        return type(self)(value)


class Bytes(Quantity, int):
    """A whole number of bytes; prints binary units (KiB, MiB, GiB) unless asked for decimal ones (kB, MB, GB)."""

    units = {**_BINARY, **_DECIMAL_BYTES}
    auto_units = tuple(_BINARY)


class Flops(Quantity, int):
    """A whole number of floating-point operations (never operations per second); a multiply-add counts as two."""

    units = {**_FLOP, "ZFLOP": 10**21, "PF-day": 86_400 * 10**15}
    auto_units = tuple(units)[:-1]


class FlopsPerSecond(Quantity, float):
    """A speed: floating-point operations a second, reached or at best."""

    units = {f"{unit}/s": size for unit, size in _FLOP.items()}


class Seconds(Quantity, float):
    """A duration in seconds."""

    units = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86_400.0}


class Count(Quantity, int):
    """A number of things: parameters, messages, calls."""

    units = {"": 1, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
    auto_units = ("",)


class Ratio(Quantity, float):
    """A bare number that need not be whole: a loss, a share, a ratio."""

    units = {"": 1.0}


UNITS = {unit: kind for kind in (Count, Seconds, Flops, FlopsPerSecond, Bytes) for unit in kind.units}
"""Every unit name, and the class that it belongs to."""


def quantity(value: float, unit: str) -> Bytes | Flops | FlopsPerSecond | Seconds | Count:
    """The quantity that `value` in `unit` stands for: `quantity(1.5, "KiB") == Bytes(1536)`.

    Raises:
        ValueError: no class has such a unit.
    """
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; known are {', '.join(u for u in UNITS if u)}")
    kind = UNITS[unit]
    scaled = value * kind.units[unit]
    return kind(scaled if issubclass(kind, float) else round(scaled))
