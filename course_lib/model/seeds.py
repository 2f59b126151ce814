"""Random numbers that belong to (seed, step, rank) or (seed, layer), and never to a process.

A process's own random state depends on everything that the process did before; four ranks would draw the same numbers
or different ones by accident. Here every draw is a pure function of integers that name the draw, in integer arithmetic
alone, so a draw is the same on every machine and in every version of Python.
"""

from __future__ import annotations

from collections.abc import Iterator

_MASK = 2**64 - 1  # Python's integers grow; SplitMix64's wrap around at 64 bits
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, odd: multiples of it come back only after 2^64 steps


def scramble(number: int) -> int:
    """A 64-bit integer; each bit depends on all bits of `number` (SplitMix64's last step; Steele et al. 2014)."""
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _MASK  # `*` binds tighter than `&`
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _MASK
    return number ^ (number >> 31)


def mix(*names: int) -> int:
    """One 64-bit seed from the integers that name a draw: `mix(seed, layer)`, `mix(seed, step, rank)`."""
    state = 0
    for name in names:
        state = scramble((state + _GOLDEN + name) & _MASK)  # scrambled after each name, so that the order counts
    return state


def integers(*names: int) -> Iterator[int]:
    """An endless stream of 64-bit integers (SplitMix64) that `names` name; the same names give the same stream."""
    state = mix(*names)
    while True:
        state = (state + _GOLDEN) & _MASK
        yield scramble(state)
