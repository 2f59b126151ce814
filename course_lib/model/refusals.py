"""Refusals of sizes and of words for a choice: the name, the value and the values that would do."""

from __future__ import annotations

from collections.abc import Collection


def check_sizes(**sizes: object) -> None:
    """Raise a ValueError with the first size that is no positive integer; True is none."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}={size!r}: it must be a positive integer")


def one_of(name: str, given: object, known: Collection[object]) -> None:
    """Raise a ValueError that lists the known values, unless `given` is one of them."""
    if isinstance(given, bool) != any(isinstance(each, bool) for each in known) or given not in known:
        raise ValueError(f"{name}={given!r}: it must be one of {', '.join(map(repr, known))}")
