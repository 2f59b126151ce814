"""A data-parallel step of the course's GPT: ours beside torch's DistributedDataParallel, in one run.

    python benchmarks/data_parallel.py

Every contestant takes the same steps on 4 ranks with one thread each; `turns.py` says how they are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from turns import print_table, take_turns

from course_kit import ranks
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
    """Seconds of each step on this rank, by wrapper."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    inputs, targets = torch.randint(0, 256, (2, batch_size, CONFIG.context), generator=generator)

    def step_of(wrap: Callable[[GPT], Any]) -> Callable[[], None]:
        replica = wrap(GPT(CONFIG))
        optimizer = torch.optim.SGD(replica.parameters(), lr=0.01)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            replica(inputs, targets).backward()
            if isinstance(replica, NaiveDataParallel):
                replica.synchronize()
            optimizer.step()

        return step

    return take_turns({name: step_of(wrap) for name, wrap in wrappers.items()}, repeats)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=4, help="sequences per rank")
    parser.add_argument("--world-size", type=int, default=4)
    given = parser.parse_args()
    with ranks.Ranks(given.world_size, timeout_s=600, diagnose=False) as pool:
        per_rank = pool.run(time_steps, WRAPPERS, given.repeats, given.batch_size)
    print(
        f"torch {torch.__version__}, {given.world_size} ranks with 1 thread each, {given.batch_size} sequences of 128"
    )
    print_table(per_rank, dict.fromkeys(WRAPPERS, "DistributedDataParallel"))


if __name__ == "__main__":
    main()
