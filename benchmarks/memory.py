"""The cost of watching: a training step plain, under `measure.memory`, and under PyTorch's own MemTracker.

    python benchmarks/memory.py

Prints the median seconds of one step for several models and the median ratio to a plain step. Steps of the three kinds
take turns, and a ratio is taken within each turn, so that a busy moment of the machine hits all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.distributed._tools.mem_tracker import MemTracker

from course_kit import measure
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.train.step import train_step

CONFIGS = {
    "tiny: 2 layers, width 64": (GPTConfig(layers=2, width=64, heads=2, vocab_size=256, context=64), 4),
    "lesson 00: 4 layers, width 128": (GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=128), 8),
    "8 layers, width 256": (GPTConfig(layers=8, width=256, heads=8, vocab_size=256, context=128), 4),
}


def timed_steps(
    config: GPTConfig, batch_size: int, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every step, by kind of watching, on one thread."""
    torch.set_num_threads(1)
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs, targets = torch.randint(0, config.vocab_size, (2, batch_size, config.context))

    def theirs() -> MemTracker:
        tracker = MemTracker()
        tracker.track_external(model, optimizer, inputs, targets)
        return tracker

    kinds: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "plain": nullcontext,
        "measure.memory": lambda: measure.memory(model, optimizer, (inputs, targets)),
        "MemTracker": theirs,
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    train_step(model, optimizer, (inputs, targets))
    for _ in range(repeats):
        for kind, watched in kinds.items():
            start = clock()
            with watched():
                train_step(model, optimizer, (inputs, targets))
            seconds[kind].append(clock() - start)
    return seconds


def median_ratio(times: list[float], plain: list[float]) -> float:
    """The median over the turns of time / plain time."""
    return statistics.median(a / b for a, b in zip(times, plain, strict=True))


def main() -> None:
    """Print the table."""
    print(f"torch {torch.__version__}, 1 thread, AdamW, one step with its account, median of 15\n")
    print(f"{'':32}{'plain':>10}{'measure.memory':>24}{'MemTracker':>22}")
    for name, (config, batch_size) in CONFIGS.items():
        plain, *watched = timed_steps(config, batch_size, repeats=15).values()
        cells = "".join(f"{1e3 * statistics.median(t):12.1f} ms ({median_ratio(t, plain):5.2f}×)" for t in watched)
        print(f"{name:32}{1e3 * statistics.median(plain):7.1f} ms{cells}")


if __name__ == "__main__":
    main()
