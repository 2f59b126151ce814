"""The right answers of lesson 05's exercises, computed, and what the checks of its turns share with them."""

from __future__ import annotations

from collections.abc import Sequence


def loudness(lengths: Sequence[float]) -> list[float]:
    """What each piece counts in a sum that is cut to 1 behind every piece; `lengths` are those before the cuts."""
    shares = list[float]()
    for length in lengths:
        shares = [share / max(1, length) for share in [*shares, 1.0]]
    return shares


def loudest_when_sorted(lengths: Sequence[int], size: int) -> float:
    """How many times too loud a token of the first piece is in a mean of means, rows sorted and cut by `size`."""
    pieces = [sum(sorted(lengths)[start : start + size]) for start in range(0, len(lengths), size)]
    return sum(pieces) / (len(pieces) * pieces[0])


def passes(rows: int, size: int) -> int:
    """Forward passes of a step of `rows` sequences in pieces of at most `size`."""
    return -(-rows // size)


def sixth_to_first() -> float:
    """The sixth of ten equal gradients against the first; each is as long as the limit, and a cut follows each."""
    lengths = [1.0] + [2.0] * 9  # what was cut is 1 long, and the next piece brings another 1
    return loudness(lengths)[5] / loudness(lengths)[0]
