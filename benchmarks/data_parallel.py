"""A data-parallel step of the course's GPT: ours beside torch's DistributedDataParallel, in one run.

    python benchmarks/data_parallel.py

Every contestant takes the same steps on 4 ranks with one thread each, in turns and in random order, so that a busy
moment of the machine hits all of them. A step lasts until the slowest rank is done. Printed: medians, their ratio to
DDP's, and the median of the ratios of steps that were taken in the same turn.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib import ranks
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel import BucketedDataParallel, NaiveDataParallel

CONFIG = GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=128)
WRAPPERS: dict[str, Callable[[GPT], Any]] = {
    "DistributedDataParallel": DistributedDataParallel,
    "DistributedDataParallel, gradient_as_bucket_view": lambda m: DistributedDataParallel(
        m, gradient_as_bucket_view=True
    ),
    "NaiveDataParallel": NaiveDataParallel,
    "BucketedDataParallel(overlap=False)": lambda m: BucketedDataParallel(m, overlap=False),
    "BucketedDataParallel(bucket_bytes=2**20)": lambda m: BucketedDataParallel(m, bucket_bytes=2**20),
    "BucketedDataParallel": BucketedDataParallel,
}


def time_steps(wrappers: dict[str, Callable[[GPT], Any]], repeats: int, batch_size: int) -> dict[str, list[float]]:
    """Seconds of each step on this rank, by wrapper; every step starts at a barrier."""
    replicas = {name: wrap(GPT(CONFIG)) for name, wrap in wrappers.items()}
    optimizers = {name: torch.optim.SGD(replica.parameters(), lr=0.01) for name, replica in replicas.items()}
    generator = torch.Generator().manual_seed(dist.get_rank())
    inputs, targets = torch.randint(0, 256, (2, batch_size, CONFIG.context), generator=generator)
    seconds: dict[str, list[float]] = {name: [] for name in wrappers}
    for repeat in range(repeats + 3):
        turns = random.Random(repeat).sample(sorted(replicas), len(replicas))  # nobody always follows the same one
        for name in turns:
            replica = replicas[name]
            dist.barrier()
            start = time.perf_counter()
            optimizers[name].zero_grad(set_to_none=True)
            replica(inputs, targets).backward()
            if isinstance(replica, NaiveDataParallel):
                replica.synchronize()
            optimizers[name].step()
            if repeat >= 3:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=4, help="sequences per rank")
    parser.add_argument("--world-size", type=int, default=4)
    given = parser.parse_args()
    with ranks.Ranks(given.world_size, timeout_s=600, diagnose=False) as pool:
        per_rank = pool.run(time_steps, WRAPPERS, given.repeats, given.batch_size)
    slowest = {name: [max(times) for times in zip(*(each[name] for each in per_rank))] for name in WRAPPERS}
    medians = {name: statistics.median(times) for name, times in slowest.items()}
    theirs = medians["DistributedDataParallel"]
    print(
        f"torch {torch.__version__}, {given.world_size} ranks with 1 thread each, {given.batch_size} sequences of 128"
    )
    print(f"{'':52}{'median step':>14}{'over DDP':>10}{'paired':>10}")
    for name, seconds in medians.items():
        paired = statistics.median(a / b for a, b in zip(slowest[name], slowest["DistributedDataParallel"]))
        print(f"{name:52}{1e3 * seconds:11.1f} ms{seconds / theirs:9.2f}×{paired:9.2f}×")


if __name__ == "__main__":
    main()
