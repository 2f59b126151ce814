"""How long rounding to a format takes, beside torch's own cast: `python benchmarks/numerics.py [millions]`.

Ours takes float32 and gives float32 that lies on the format's grid; torch's cast gives the narrow dtype. The ratio is
asserted to be at most 10 for the two fp8 formats (nearest), on 10 million numbers. Our result has four times the bytes;
what the system takes to hand out and fill its memory is printed, too.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch

from course_lib.numerics import BF16, FP8_E4M3FN, FP8_E5M2, FP16, TORCH_DTYPES

LARGEST_RATIO = 10


def median_s(fn: Callable[[], object], repeats: int = 7) -> float:
    """Median seconds of `fn` over `repeats` calls."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        fn()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main(millions: int = 10) -> int:
    """Print one line for each format; return 1 where an fp8 format is too slow."""
    x = torch.randn(millions * 1_000_000)
    too_slow = False
    print(f"{millions} million float32, {torch.get_num_threads()} thread(s), torch {torch.__version__}; median of 7")
    print(f"{'format':12} {'torch cast':>11} {'ours':>9} {'ratio':>7}   {'stochastic':>10}")
    for fmt in (FP8_E4M3FN, FP8_E5M2, BF16, FP16):
        theirs = median_s(lambda fmt=fmt: x.to(TORCH_DTYPES[fmt.name]))
        ours = median_s(lambda fmt=fmt: fmt.round(x))
        chance = median_s(lambda fmt=fmt: fmt.round(x, "stochastic"), repeats=3)
        ratio = ours / theirs
        print(f"{fmt.name:12} {theirs * 1e3:8.1f} ms {ours * 1e3:6.1f} ms {ratio:7.1f}   {chance * 1e3:7.1f} ms")
        too_slow |= fmt.bits == 8 and ratio > LARGEST_RATIO
    memory = median_s(lambda: torch.empty_like(x).fill_(1))
    print(f"memory for our result, filled with one number: {memory * 1e3:.1f} ms")
    print(f"fp8 within {LARGEST_RATIO}x: {'no' if too_slow else 'yes'}")
    return int(too_slow)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
