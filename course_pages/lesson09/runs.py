"""Runs of lesson 09's page: the model's stages, steps in slow motion, bytes held, errors of steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from course_kit import measure, ranks
from course_kit.units import Bytes, Count
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.text import Batch
from course_lib.pipeline.executor import PacedPipeline, Pipeline
from course_lib.pipeline.schedule import Gantt, Schedule, Span, gantt_of, simulate, unit_costs
from course_lib.pipeline.stages import GPTStage, layer_seconds, partition_layers
from course_lib.train.step import train_step

SMALL = GPTConfig(layers=6, width=64, heads=4, vocab_size=256, context=64, tied=False)
TIED = GPTConfig(layers=6, width=64, heads=4, vocab_size=256, context=64)


def micro_batches(step: int, count: int) -> list[Batch]:
    """`count` micro-batches of two sequences each: 2 · 64 tokens."""
    stories = text.stories(seed=0)
    return [stories.batch(seed=0, step=step, rank=number, batch_size=2, context=64) for number in range(count)]


def my_stages(schedule: Schedule, config: GPTConfig = SMALL, dtype: torch.dtype = torch.float64) -> dict[int, GPTStage]:
    """Stage number → module, for the stages of this rank."""
    layers = partition_layers([1.0] * (config.layers + 2), schedule.stages)  # equal shares: every layer counts as one
    mine = schedule.stages_of(dist.get_rank())
    return {stage: GPTStage(config, layers[stage], dtype=dtype) for stage in mine}


def forward(stage: GPTStage, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's part of a forward pass: what came in, and what it made of it (the loss, on the last rank)."""
    rank, last, x = dist.get_rank(), dist.get_world_size() - 1, inputs
    if rank > 0:
        dist.recv(x := stage.recv_buffer(inputs), src=rank - 1)
        x.requires_grad_()
    y = stage(x, targets) if rank == last else stage(x)
    if rank < last:
        dist.send(y.detach(), dst=rank + 1)
    return x, y


def for_real(schedule: Schedule, steps: int = 5) -> dict[str, Gantt]:
    """The schedule in slow motion: the ideal chart, and that of the quickest of some steps on real ranks."""

    def on_a_rank() -> list[list[Span]]:
        stages, records = my_stages(schedule), []
        sgd = torch.optim.SGD([p for stage in stages.values() for p in stage.parameters()], lr=0.1)
        pipeline = PacedPipeline(schedule, stages, optimizer=sgd if schedule.is_asynchronous else None)
        for step in range(steps):
            pipeline.forward_backward(micro_batches(step, schedule.micro_batches))
            records.append(pipeline.spans)
            dist.barrier()
        return records

    ideal = simulate(schedule, unit_costs(schedule, PacedPipeline.unit_s))
    return {"ideal": ideal, "measured": quickest(schedule, on_a_rank)}


def quickest(schedule: Schedule, on_a_rank: Callable[[], list[list[Span]]]) -> Gantt:
    """The chart of the quickest of the steps whose spans each rank returns. No call is watched: watching costs time."""
    steps = zip(*ranks.run(on_a_rank, world_size=schedule.ranks, diagnose=False))
    return min((gantt_of(schedule.name, spans) for spans in steps), key=lambda each: each.makespan)


def held(schedule: Schedule, *also: str) -> list[Bytes]:
    """Rank by rank, the most bytes of activations in one step, alone or together with other categories of the meter:
    "temporaries" are those of a pass that is running, and the inputs and gradients that wait for a W.
    """

    def on_a_rank() -> Bytes:
        pipeline, batch = Pipeline(schedule, my_stages(schedule)), micro_batches(0, schedule.micro_batches)
        with measure.memory(inputs=[tensor for pair in batch for tensor in pair]) as record:
            pipeline.forward_backward(batch)
        return Bytes(sum((record.timeline[each] for each in also), record.timeline["activations"]).max())

    return ranks.run(on_a_rank, world_size=schedule.ranks)


def messages(schedule: Schedule) -> Count:
    """Messages of one step, of all ranks together."""

    def of_a_rank() -> int:
        pipeline = Pipeline(schedule, my_stages(schedule))
        with measure.traffic() as sent:
            pipeline.forward_backward(micro_batches(0, schedule.micro_batches))
        return sent.messages["send"]

    return Count(sum(ranks.run(of_a_rank, world_size=schedule.ranks)))


def missed(kind: type[Pipeline], schedule: Schedule, config: GPTConfig = SMALL, steps: int = 3) -> list[list[float]]:
    """Rank by rank and step by step: the distance of the weights after a step of SGD from those of one process with all
    micro-batches at once, in lengths of the right step; the largest over all tensors.
    """

    def on_a_rank() -> list[float]:
        stages, whole = my_stages(schedule, config), GPT(config, dtype=torch.float64)
        mine = {name: p for stage in stages.values() for name, p in stage.named_parameters()}
        sgd, its_sgd = (torch.optim.SGD(each, lr=0.1) for each in (mine.values(), whole.parameters()))
        pipeline, far = kind(schedule, stages), []
        for step in range(steps):
            before = {name: p.detach().clone() for name, p in whole.named_parameters()}
            batches = micro_batches(step, schedule.micro_batches)
            inputs, targets = map(torch.cat, zip(*batches))
            train_step(whole, its_sgd, (inputs, targets))
            sgd.zero_grad()
            pipeline.forward_backward(batches)
            sgd.step()
            right = dict(whole.named_parameters())
            far.append(max(((p - right[n]).norm() / (right[n] - before[n]).norm()).item() for n, p in mine.items()))
        return far

    return ranks.run(on_a_rank, world_size=schedule.ranks)


def seconds_of_layers(config: GPTConfig, size: int = 2) -> list[float]:
    """Seconds of each layer for `size` sequences, measured inside two ranks at once; the slower rank counts."""
    tokens = torch.zeros(size, config.context, dtype=torch.long)
    return [max(both) for both in zip(*ranks.run(layer_seconds, config, tokens, world_size=2, diagnose=False))]


def computing(config: GPTConfig, layers: list[range], schedule: Schedule, steps: int = 4) -> Gantt:
    """The chart of the quickest of some steps without slow motion."""

    def on_a_rank() -> list[list[Span]]:
        pipeline, records = Pipeline(schedule, {(rank := dist.get_rank()): GPTStage(config, layers[rank])}), []
        tokens = torch.randint(config.vocab_size, (2, config.context), generator=torch.Generator().manual_seed(0))
        for _ in range(steps):
            pipeline.forward_backward([(tokens, tokens)] * schedule.micro_batches)
            records.append(pipeline.spans)
            dist.barrier()
        return records

    return quickest(schedule, on_a_rank)
