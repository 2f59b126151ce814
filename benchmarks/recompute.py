"""A recomputed training step beside `torch.utils.checkpoint`'s: `python benchmarks/recompute.py [pairs]`.

One GPT, dropout on, every block a segment. The three ways take turns, so that a busy machine slows down all of them.
Ours divided by `use_reentrant=False` must be at most 1.10.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

from course_lib.model.gpt import GPT, Block, GPTConfig
from course_lib.train.recompute import recompute
from course_lib.train.step import train_step

LARGEST_RATIO = 1.10
CONFIG = GPTConfig(layers=8, width=128, heads=4, vocab_size=256, context=64, dropout=0.1)


def model_with(wrap: Callable[..., object] | None) -> Callable[[], object]:
    """A training step of a GPT whose blocks run through `wrap`."""
    torch.manual_seed(0)
    model = GPT(CONFIG)
    if wrap is not None:
        for block in model.modules():
            if isinstance(block, Block):
                block.forward = functools.partial(wrap, block.forward)  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = (torch.randint(256, (8, 64)), torch.randint(256, (8, 64)))
    return lambda: train_step(model, optimizer, batch)


def main(pairs: int = 30) -> int:
    """Print the medians and the ratios; return 1 where ours is too slow."""
    steps = {
        "plain": model_with(None),
        "ours": model_with(recompute),
        "torch, use_reentrant=False": model_with(functools.partial(checkpoint, use_reentrant=False)),
        "torch, use_reentrant=True": model_with(functools.partial(checkpoint, use_reentrant=True)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(pairs + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn >= 2:  # the first two are warm-up
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{CONFIG.layers} blocks, {torch.get_num_threads()} thread(s), torch {torch.__version__}, median of {pairs}")
    for name, median_s in medians.items():
        print(f"{name:28} {median_s * 1e3:8.1f} ms   {median_s / medians['plain']:5.2f}x plain")
    ratio = medians["ours"] / medians["torch, use_reentrant=False"]
    print(f"ours / torch: {ratio:.3f}, at most {LARGEST_RATIO}: {'yes' if ratio <= LARGEST_RATIO else 'no'}")
    return int(ratio > LARGEST_RATIO)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
