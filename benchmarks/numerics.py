"""The seconds of rounding to a format, beside torch's own cast: `python benchmarks/numerics.py [millions …]`.

Ours takes float32 and gives float32 that lies on the format's grid; torch's cast gives the narrow dtype, a quarter of
the bytes. The ratio is asserted to be at most 10 for the two fp8 formats (nearest) on 8 million numbers, for whose
result the C library has memory that was used before. From 32 MiB on (glibc's DEFAULT_MMAP_THRESHOLD_MAX) the library
asks the system for new memory each time, and filling that takes longer than rounding: 10 million numbers show it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch

from course_lib.numerics import BF16, FP8_E4M3FN, FP8_E5M2, FP16, TORCH_DTYPES

LARGEST_RATIO = 10
REUSED, FRESH = 8, 10
"""Millions of numbers: a result in memory that was used before, and one in new memory."""


def median_s(fn: Callable[[], object], repeats: int = 7) -> float:
    """Median seconds of `fn` over `repeats` calls, after one that is not counted."""
    fn()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        fn()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def ratios(millions: int) -> dict[str, float]:
    """Print one line for each format; return ours over torch's."""
    x = torch.randn(millions * 1_000_000)
    print(f"{millions} million float32, {torch.get_num_threads()} thread(s), torch {torch.__version__}; median of 7")
    print(f"{'format':12} {'torch cast':>11} {'ours':>9} {'ratio':>7}   {'stochastic':>10}")
    found = {}
    for fmt in (FP8_E4M3FN, FP8_E5M2, BF16, FP16):
        theirs = median_s(lambda fmt=fmt: x.to(TORCH_DTYPES[fmt.name]))
        ours = median_s(lambda fmt=fmt: fmt.round(x))
        chance = median_s(lambda fmt=fmt: fmt.round(x, "stochastic"), repeats=3)
        found[fmt.name] = ours / theirs
        times = f"{theirs * 1e3:8.1f} ms {ours * 1e3:6.1f} ms {ours / theirs:7.1f}   {chance * 1e3:7.1f} ms"
        print(f"{fmt.name:12} {times}")
    memory = median_s(lambda: torch.empty_like(x).fill_(1))
    print(f"memory for our result, filled with one number: {memory * 1e3:.1f} ms\n")
    return found


def main(*millions: int) -> int:
    """Time rounding of each of these millions; return 1 where an fp8 format is too slow on `REUSED`."""
    found = {each: ratios(each) for each in millions or (REUSED, FRESH)}
    judged = found.get(REUSED, {})
    too_slow = [name for name in ("fp8_e4m3fn", "fp8_e5m2") if judged.get(name, 0) > LARGEST_RATIO]
    print(f"fp8 within {LARGEST_RATIO}x on {REUSED} million: {'no' if too_slow else 'yes' if judged else 'not timed'}")
    return int(bool(too_slow))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
