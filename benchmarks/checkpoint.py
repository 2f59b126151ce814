"""The cost of a checkpoint for training: written while training waits, or in the background from a copy.

    python benchmarks/checkpoint.py

Two ranks train the course's GPT with ZeRO-2; a save holds 12 bytes a weight. "the call" is the time that `save` keeps
a rank; "in all" is the extra time of a round of steps with a save, copying and writing included: on CPU ranks the
thread that writes takes cores from the thread that trains.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from course_kit import ranks
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.checkpoint import Checkpoints
from course_lib.parallel.zero import ZeroOptimizer

CONFIG = GPTConfig(layers=6, width=256, heads=4, vocab_size=256, context=64)


def time_saves(folder: Path, repeats: int, steps: int) -> dict[str, list[float]]:
    """Seconds of each round of steps, and of each call of `save` in it, on this rank."""
    model = GPT(CONFIG)
    optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=2, lr=1e-3)
    checkpoints = Checkpoints(folder, model, optimizer)
    tokens = torch.randint(0, 256, (2, 2, CONFIG.context), generator=torch.Generator().manual_seed(dist.get_rank()))
    seconds: dict[str, list[float]] = {}
    for repeat in range(repeats + 1):
        for kind, name in enumerate(("no save", "save", "save(wait=False)")):
            dist.barrier()
            start, call = time.perf_counter(), 0.0
            for step in range(steps):
                optimizer.zero_grad()
                model(*tokens).backward()
                optimizer.step()
                if step == 0 and kind:
                    before = time.perf_counter()
                    checkpoints.save(3 * repeat + kind, wait=kind == 1)
                    call = time.perf_counter() - before
            checkpoints.wait()
            dist.barrier()
            if repeat:  # the first round warms up
                seconds.setdefault(name, []).append(time.perf_counter() - start)
                seconds.setdefault(f"{name}: the call", []).append(call)
    return seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--steps", type=int, default=8, help="in a round, with one save")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        per_rank = ranks.run(
            time_saves, Path(folder), given.repeats, given.steps, world_size=2, timeout_s=600, diagnose=False
        )
    slowest = {name: [max(times) for times in zip(*(each[name] for each in per_rank))] for name in per_rank[0]}
    print(f"{CONFIG.layers} blocks of width {CONFIG.width}; medians of {given.repeats} rounds of {given.steps} steps")
    print(f"{'':18}{'the call':>14}{'in all':>14}{'the call, over save':>22}")
    for name in ("save", "save(wait=False)"):
        call = statistics.median(slowest[f"{name}: the call"])
        in_all = statistics.median(a - b for a, b in zip(slowest[name], slowest["no save"]))
        ratio = statistics.median(a / b for a, b in zip(slowest[f"{name}: the call"], slowest["save: the call"]))
        print(f"{name:18}{1e3 * call:11.1f} ms{1e3 * in_all:11.1f} ms{ratio:21.2f}×")


if __name__ == "__main__":
    main()
