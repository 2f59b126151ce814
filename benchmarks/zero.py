"""A step with ZeRO: ours beside torch's ZeroRedundancyOptimizer (stage 1) and fully_shard (stage 3), in one run.

    python benchmarks/zero.py --world-size 2

Every contestant takes the same AdamW steps on ranks with one thread each; `turns.py` says how they are compared.
`fully_shard` frees the blocks' weights after the forward pass, as `Zero3` does, and keeps those of the root.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from turns import print_table, take_turns

from course_kit import ranks
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.parallel.zero3 import Zero3

CONFIG = GPTConfig(layers=8, width=128, heads=4, vocab_size=256, context=128)
LEARNING_RATE = 1e-3
Training = tuple[nn.Module, Any]
"""The module that is called for the loss, and the optimizer that steps."""


def torch_stage_1() -> Training:
    """torch's stage 1; DistributedDataParallel averages the gradients."""
    model = DistributedDataParallel(GPT(CONFIG), gradient_as_bucket_view=True)
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=LEARNING_RATE)


def our_stage(stage: Any) -> Callable[[], Training]:
    """The course's stage 1 or 2."""

    def build() -> Training:
        model = GPT(CONFIG)
        return model, ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=stage, lr=LEARNING_RATE)

    return build


def torch_stage_3() -> Training:
    """FSDP2, a unit for each block."""
    model, mesh = GPT(CONFIG), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def our_stage_3(prefetch: bool) -> Callable[[], Training]:
    """The course's stage 3, with a unit for each block, too."""

    def build() -> Training:
        model = Zero3(GPT(CONFIG), prefetch=prefetch)
        return model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)

    return build


ONE, THREE = "DDP, ZeroRedundancyOptimizer", "fully_shard"
CONTESTANTS: dict[str, Callable[[], Training]] = {
    ONE: torch_stage_1,
    "ZeroOptimizer(stage=1)": our_stage(1),
    "ZeroOptimizer(stage=2)": our_stage(2),
    THREE: torch_stage_3,
    "Zero3(prefetch=False)": our_stage_3(False),
    "Zero3": our_stage_3(True),
}
RIVALS = {name: ONE if name == ONE or "Optimizer(" in name else THREE for name in CONTESTANTS}


def step_of(build: Callable[[], Training], batch_size: int) -> Callable[[], None]:
    """A function that takes one step on this rank's own tokens."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    inputs, targets = torch.randint(0, 256, (2, batch_size, CONFIG.context), generator=generator)
    model, optimizer = build()

    def step() -> None:
        optimizer.zero_grad()
        model(inputs, targets).backward()
        if isinstance(model, Zero3):
            model.synchronize()
        optimizer.step()

    return step


def time_steps(names: list[str], repeats: int, batch_size: int) -> dict[str, list[float]]:
    """Seconds of each step on this rank, by contestant."""
    return take_turns({name: step_of(CONTESTANTS[name], batch_size) for name in names}, repeats)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=2, help="sequences per rank")
    parser.add_argument("--world-size", type=int, default=2)
    given = parser.parse_args()
    with ranks.Ranks(given.world_size, timeout_s=600, diagnose=False) as pool:
        per_rank = pool.run(time_steps, list(CONTESTANTS), given.repeats, given.batch_size)
    print(
        f"torch {torch.__version__}, {given.world_size} ranks with 1 thread each, {given.batch_size} sequences of 128"
    )
    print_table(per_rank, RIVALS)


if __name__ == "__main__":
    main()
