"""A pipelined step of the course's GPT: ours beside torch.distributed.pipelining, in one run.

    python benchmarks/pipeline.py

Every contestant takes the same steps on ranks with one thread each; `turns.py` says how they are compared. Embeddings
are not tied: torch's pipeline would not add up the two gradients.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from turns import print_table, take_turns

from course_kit import ranks
from course_lib.model.gpt import GPTConfig, loss_of
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.schedule import ORDERS, gpipe, interleaved, one_f_one_b
from course_lib.pipeline.stages import GPTStage, partition_layers
from course_lib.train.accumulate import micro_batches

CONFIG = GPTConfig(layers=6, width=128, heads=4, vocab_size=256, context=64, tied=False)
THEIRS = {"torch GPipe": ScheduleGPipe, "torch 1F1B": Schedule1F1B}
OURS = {"gpipe": gpipe, "1f1b": one_f_one_b, "zero-bubble": ORDERS["zero-bubble"], "interleaved": interleaved}
RIVAL = {"gpipe": "torch GPipe"}
"""Contestant → its rival, if that is not torch's 1F1B."""
Step = Callable[[Tensor, Tensor], None]


def layers_of(n_stages: int) -> list[range]:
    """The stages, cut as if the embeddings were free and the head cost half a block: the same for all contestants."""
    return partition_layers([0.0, *[1.0] * CONFIG.layers, 0.5], n_stages)


def torchs(name: str, n_micro_batches: int) -> tuple[list[GPTStage], Step]:
    """torch's pipeline: this rank's stages, and the function that takes a step."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    module = GPTStage(CONFIG, layers_of(world_size)[rank])
    stage = PipelineStage(module, rank, world_size, torch.device("cpu"))
    schedule = THEIRS[name](stage, n_micro_batches, loss_fn=loss_of)

    def step(inputs: Tensor, targets: Tensor) -> None:
        if rank == 0:
            schedule.step(inputs)
        elif rank == world_size - 1:
            schedule.step(target=targets, losses=[])
        else:
            schedule.step()

    return [module], step


def ours(name: str, n_micro_batches: int) -> tuple[list[GPTStage], Step]:
    """The course's pipeline: this rank's stages, and the function that takes a step."""
    schedule = OURS[name](dist.get_world_size(), n_micro_batches)
    layers = layers_of(schedule.stages)
    stages = {number: GPTStage(CONFIG, layers[number]) for number in schedule.stages_of(dist.get_rank())}
    pipeline = Pipeline(schedule, stages)

    def step(inputs: Tensor, targets: Tensor) -> None:
        pipeline.forward_backward(micro_batches((inputs, targets), len(inputs) // n_micro_batches))

    return list(stages.values()), step


def time_steps(names: list[str], repeats: int, n_micro_batches: int, rows: int) -> dict[str, list[float]]:
    """Seconds of each step on this rank, by contestant."""
    made = {name: torchs(name, n_micro_batches) for name in THEIRS}
    made |= {name: ours(name, n_micro_batches) for name in names}
    tokens = torch.randint(0, 256, (rows * n_micro_batches, CONFIG.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step_of(stages: list[GPTStage], step: Step) -> Callable[[], None]:
        def whole_step() -> None:
            for stage in stages:
                stage.zero_grad(set_to_none=True)
            step(inputs, targets)

        return whole_step

    return take_turns({name: step_of(*each) for name, each in made.items()}, repeats)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--rows", type=int, default=2, help="sequences in a micro-batch")
    parser.add_argument("--only", nargs="+", choices=OURS, default=list(OURS), help="which of our schedules")
    given = parser.parse_args()
    with ranks.Ranks(given.world_size, timeout_s=600, diagnose=False) as pool:
        per_rank = pool.run(time_steps, given.only, given.repeats, given.micro_batches, given.rows)
    print(
        f"torch {torch.__version__}, {given.world_size} ranks with 1 thread each, {given.micro_batches} micro-batches"
    )
    print_table(per_rank, {name: name if name in THEIRS else RIVAL.get(name, "torch 1F1B") for name in per_rank[0]})


if __name__ == "__main__":
    main()
