"""The common part of benchmarks of parallel steps: contestants take turns on the same ranks, compared in pairs.

Every contestant takes the same steps, in turns and in random order, so that a busy moment of the machine hits all of
them and none always follows the same one. A step lasts until the slowest rank is done. Quote the paired ratio: the
median of the ratios of steps that were taken in the same turn.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch.distributed as dist

WARM_UP = 3
Seconds = Mapping[str, Sequence[float]]
"""Contestant → the seconds of its steps."""


def take_turns(steps: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each step on this rank; every step starts at a barrier. All ranks must call."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + WARM_UP):
        for name in random.Random(repeat).sample(sorted(steps), len(steps)):
            dist.barrier()
            start = time.perf_counter()
            steps[name]()
            if repeat >= WARM_UP:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def print_table(per_rank: Sequence[Seconds], rivals: Mapping[str, str]) -> None:
    """Print medians, their ratio to the rival's, and the paired ratio.

    Args:
        per_rank: the results of `take_turns` on each rank.
        rivals: contestant → its rival; the keys are the lines of the table.
    """
    slowest = {name: [max(times) for times in zip(*(each[name] for each in per_rank))] for name in per_rank[0]}
    width = 2 + max(map(len, rivals))
    print(f"{'':{width}}{'median step':>14}{'ratio':>10}{'paired':>10}   over")
    for name, rival in rivals.items():
        ours, theirs = slowest[name], slowest[rival]
        median, ratio = statistics.median(ours), statistics.median(ours) / statistics.median(theirs)
        paired = statistics.median(a / b for a, b in zip(ours, theirs))
        over = "" if rival == name else rival
        print(f"{name:{width}}{1e3 * median:11.1f} ms{ratio:9.2f}×{paired:9.2f}×   {over}".rstrip())
