"""Train the course's GPT on as many ranks as there are, cut as the command line says. For torchrun:

    torchrun --standalone --nproc-per-node 4 -m course_lib.parallel.train --data 2 --tensor 2 --zero 1 --oracle

Each line is a step and its loss; with `--oracle` the loss of `train_step` on one device stands beside it, the same but
for rounding, however the grid is chosen.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
import torch.distributed as dist

from course_kit import ranks
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.text import Batch
from course_lib.parallel.hybrid import AXES, HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.pipeline.schedule import ORDERS
from course_lib.train.step import train_step

ADAMW: dict[str, Any] = {"lr": 3e-3, "weight_decay": 0.1}
CONFIG = GPTConfig(layers=4, width=64, heads=4, vocab_size=text.VOCAB_SIZE, context=32)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for axis in AXES:
        parser.add_argument(f"--{axis}", type=int, default=1, help=f"ranks along {axis}")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences in a step, on all ranks together")
    parser.add_argument("--micro-batches", type=int, default=4, help="that a replica cuts its part of the batch into")
    parser.add_argument("--schedule", default="1f1b", choices=[name for name in ORDERS if name != "pipedream"])
    parser.add_argument("--sequence-parallel", action="store_true", help="tensor ranks cut the sequence, too")
    parser.add_argument("--zero", type=int, default=0, choices=[0, 1, 2, 3], help="stage of ZeRO along data")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--oracle", action="store_true", help="afterwards train on one device, and compare")
    return parser


def batch(step: int, batch_size: int, rank: int = 0) -> Batch:
    """The rows of a step's batch that rank `rank` has; with `batch_size` the size of the whole batch, rank 0 has it."""
    inputs, targets = text.stories().batch(0, step, rank, batch_size, CONFIG.context)  # the same on every rank
    return inputs.to(ranks.device()), targets.to(ranks.device())


def train(given: argparse.Namespace) -> list[float]:
    """The loss before each step, over the grid."""
    mesh = Mesh({axis: getattr(given, axis) for axis in AXES})  # the product must be torchrun's number of processes
    grid = HybridParallel(
        CONFIG, mesh, micro_batches=given.micro_batches, schedule=given.schedule,
        sequence_parallel=given.sequence_parallel, zero=given.zero, dtype=getattr(torch, given.dtype),
        device=ranks.device(),
    )  # fmt: skip
    optimizer = grid.optimizer(torch.optim.AdamW, **ADAMW)
    return [grid.train_step(optimizer, batch(step, given.batch_size)).item() for step in range(given.steps)]


def train_alone(steps: int, batch_size: int, dtype: torch.dtype, adamw: dict[str, Any] = ADAMW) -> list[float]:
    """The loss before each step, on one device."""
    model = GPT(CONFIG, device=ranks.device(), dtype=dtype)  # the same seed as every stage of the grid
    optimizer = torch.optim.AdamW(model.parameters(), **adamw)
    return [train_step(model, optimizer, batch(step, batch_size)).item() for step in range(steps)]


def main() -> None:
    """Join the group, train, print on rank 0."""
    given = arguments().parse_args()
    ranks.init()
    losses = train(given)
    is_first = dist.get_rank() == 0
    dist.destroy_process_group()
    if is_first:
        alone = (given.steps, given.batch_size, getattr(torch, given.dtype))
        oracle = train_alone(*alone) if given.oracle else []
        for step, loss in enumerate(losses):
            beside = f"   one device {oracle[step]:.6f}   difference {loss - oracle[step]:+.1e}" if oracle else ""
            sys.stdout.write(f"step {step:3}   loss {loss:.6f}{beside}\n")


if __name__ == "__main__":
    main()
