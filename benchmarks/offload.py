"""A step with AdamW in main memory beside torch's fused AdamW, in one run.

    python benchmarks/offload.py

Without a GPU both ends of the copy streams are main memory. So the first table shows the price of the machinery: the
copies of gradients and weights. The second shows the arithmetic alone, the time inside of the optimizers' calls:
torch's updates all weights in one, ours a bucket. `turns.py` says how they are compared.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from turns import Seconds, print_table, take_turns

from course_kit import ranks
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.offload.copy_stream import CopyStream
from course_lib.offload.zero_offload import OffloadedAdamW

CONFIG = GPTConfig(layers=6, width=256, heads=4, vocab_size=256, context=128)
TORCH = "AdamW(fused=True)"
LEARNING_RATE = 1e-3


def step_of(name: str, batch_size: int) -> Callable[[], None]:
    """A function that takes one step, on the same tokens each time."""
    inputs, targets = torch.randint(0, 256, (2, batch_size, CONFIG.context), generator=torch.Generator().manual_seed(0))
    model = GPT(CONFIG)
    if name == TORCH:
        plain = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
        update = plain.step
    else:
        update = OffloadedAdamW(
            model, CopyStream(), CopyStream(), 0 if "delayed" in name else None, lr=LEARNING_RATE
        ).step

    def step() -> None:
        model.zero_grad()
        model(inputs, targets).backward()
        update()

    return step


def time_steps(names: list[str], repeats: int, batch_size: int) -> tuple[Seconds, Seconds]:
    """Seconds of each step, and seconds of it inside of optimizers' calls, by contestant."""
    began, inside = 0.0, 0.0

    def begin(*_: object) -> None:
        nonlocal began
        began = time.perf_counter()

    def end(*_: object) -> None:
        nonlocal inside
        inside += time.perf_counter() - began

    register_optimizer_step_pre_hook(begin)
    register_optimizer_step_post_hook(end)
    updates: dict[str, list[float]] = {name: [] for name in names if "delayed" not in name}

    def watched(name: str, step: Callable[[], None]) -> None:
        before = inside
        step()
        if name in updates:
            updates[name].append(inside - before)

    steps = {name: functools.partial(watched, name, step_of(name, batch_size)) for name in names}
    return take_turns(steps, repeats), {name: spent[-repeats:] for name, spent in updates.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=4)
    given = parser.parse_args()
    names = [TORCH, "OffloadedAdamW", "OffloadedAdamW, delayed"]
    with ranks.Ranks(1, timeout_s=600, diagnose=False) as pool:
        per_rank = pool.run(time_steps, names, given.repeats, given.batch_size)
    print(f"torch {torch.__version__}, 1 thread, {given.batch_size} sequences of 128")
    whole, updates = zip(*per_rank, strict=True)
    print_table(whole, dict.fromkeys(names, TORCH))
    print("AdamW's arithmetic alone")
    print_table(updates, dict.fromkeys(updates[0], TORCH))


if __name__ == "__main__":
    main()
