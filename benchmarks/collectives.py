"""All-reduce four ways over send and receive, beside the backend's own: time against size.

    python benchmarks/collectives.py --world-size 4

Calls of all contestants take turns; the slowest rank counts, and the median over the repeats. The bytes and messages
are those of the busiest rank. On one machine all "links" are the same memory, so the bytes that a ring saves on
each link show only in part.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from course_kit import ranks
from course_kit.units import Bytes
from course_lib import predict
from course_lib.collectives import algorithms as collectives
from course_lib.collectives import schedules

SIZES = [2**k for k in (2, 10, 14, 18, 22, 24)]


def time_all(sizes: list[int], repeats: int) -> dict[tuple[str, int], list[float]]:
    """(contestant, bytes) → this rank's seconds."""
    contestants: dict[str, Callable] = {
        name: partial(collectives.all_reduce, algorithm=name) for name in schedules.ALL_REDUCE
    }
    contestants["backend"] = dist.all_reduce
    seconds: dict[tuple[str, int], list[float]] = {(name, size): [] for size in sizes for name in contestants}
    for size in sizes:
        x = torch.ones(size // 4)
        for repeat in range(repeats + 1):
            for name, all_reduce in contestants.items():
                dist.barrier()
                start = time.perf_counter()
                all_reduce(x)
                if repeat:
                    seconds[name, size].append(time.perf_counter() - start)
                x.fill_(1.0)
    return seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=11)
    given = parser.parse_args()
    p = given.world_size
    with ranks.Ranks(p, timeout_s=600, diagnose=False) as pool:
        per_rank = pool.run(time_all, SIZES, given.repeats)
    names = [*schedules.ALL_REDUCE, "backend"]
    print(f"torch {torch.__version__}, {p} ranks, milliseconds per all-reduce (fp32)\n")
    print(f"{'':>12}" + "".join(f"{name:>12}" for name in names))
    for size in SIZES:
        slowest = {name: [max(times) for times in zip(*(each[name, size] for each in per_rank))] for name in names}
        print(f"{Bytes(size)}".rjust(12) + "".join(f"{1e3 * statistics.median(slowest[name]):12.2f}" for name in names))
    print("\nbusiest rank, in tensors and messages:")
    for name in schedules.ALL_REDUCE:
        of_ranks = [predict.all_reduce(2**20, p, name, rank) for rank in range(p)]
        share, most = max(each.bytes for each in of_ranks) / 2**20, max(each.messages for each in of_ranks)
        print(f"{name:>12}{share:8.2f} n{most:6} messages")


if __name__ == "__main__":
    main()
