"""Forward and backward pass of tiled attention beside PyTorch's: `python benchmarks/attention.py [turns]`.

Causal, 8 heads of 64, fp32. Ours walks over tiles in Python; `scaled_dot_product_attention` does so in C++, and the
written-out form holds all scores. Ours divided by the written-out form must be at most 1 at the longest sequence:
lesson 16 explains how to leave the written-out form behind.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from course_lib.model.gpt import Attention, GPTConfig
from course_lib.model.tiled_attention import tiled_attention

HEADS, HEAD_WIDTH = 8, 64
LENGTHS = (256, 512, 1024, 2048)
LARGEST_RATIO = 1.0


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "tiled": lambda q, k, v: tiled_attention(q, k, v, causal=True),
    "written out": Attention(GPTConfig(1, HEADS * HEAD_WIDTH, HEADS, 1, LENGTHS[-1])).explicit,
    "scaled_dot_product_attention": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
}


def seconds_of(length: int, turns: int) -> dict[str, float]:
    """Median seconds of both passes of each way; the ways take turns."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, HEAD_WIDTH, requires_grad=True) for _ in range(3))
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(turns + 1):
        for name, attend in WAYS.items():
            start = time.perf_counter()
            attend(q, k, v).sum().backward()
            if turn:  # the first one warms up
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def main(turns: int = 7) -> int:
    """Print a line for each length; return 1 where ours is too slow."""
    print(f"1 sequence, {torch.get_num_threads()} thread(s), torch {torch.__version__}, median of {turns}")
    print(f"{'tokens':>7}{''.join(f'{name:>31}' for name in WAYS)}   ours / written out, / torch's")
    ratio = 0.0
    for length in LENGTHS:
        ours, whole, fused = seconds_of(length, turns).values()
        ratio = ours / whole
        times = "".join(f"{1e3 * seconds:28.1f} ms" for seconds in (ours, whole, fused))
        print(f"{length:7}{times}   {ratio:.2f}, {ours / fused:.2f}")
    print(f"ours / written out at {LENGTHS[-1]}: at most {LARGEST_RATIO}: {'yes' if ratio <= LARGEST_RATIO else 'no'}")
    return int(ratio > LARGEST_RATIO)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
