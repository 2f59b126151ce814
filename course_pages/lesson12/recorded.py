"""One step of a grid over time: each rank's passes, its update, and its waits for messages along each axis.

    record = recorded_step(grid, optimizer, batch, unit_s=0.05)   # all ranks; every rank gets the record of all

`step_pictures.py` draws it. Ranks that share a core would wait for the core, and not for each other:
`slow_down` makes each pass take a time that is set, asleep for most of it, and leaves messages as long as they are.
"""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor

from course_kit import measure
from course_kit.measure.timeline import RankTimeline
from course_lib.model.text import Batch
from course_lib.parallel.hybrid import AnyOptimizer, HybridParallel
from course_lib.pipeline.executor import PacedPipeline
from course_lib.pipeline.schedule import Action

PASSES = {"F": "forward", "BW": "backward", "B": "backward", "W": "backward"}


class NamedPipeline(PacedPipeline):
    """A `PacedPipeline` that tells a record, if it has one, which pass it carries out."""

    record: RankTimeline | None = None

    def _do(self, action: Action, received: Tensor | None) -> Tensor | None:
        with self.record.span(PASSES[action.kind]) if self.record else nullcontext():
            return super()._do(action, received)


def slow_down(grid: HybridParallel, unit_s: float) -> NamedPipeline:
    """Give a grid a pipeline in which a forward pass takes `unit_s` seconds or longer, a backward pass twice that."""
    before = grid.pipeline
    slow = NamedPipeline(before.schedule, before.stages, group=before.group, group_back=before.group_back)
    slow.unit_s, grid.pipeline = unit_s, slow
    return slow


def recorded_step(grid: HybridParallel, optimizer: AnyOptimizer, batch: Batch, unit_s: float) -> RankTimeline:
    """Take a step at the pace of `slow_down`. All ranks must call, and each returns the times of all.

    Computing is named "forward", "backward", "update", or "compute" for the rest; a wait is named by its operation and
    axis, "all_reduce along tensor". The first step of a grid also connects its ranks: take one before.
    """
    pipeline = slow_down(grid, unit_s)
    with measure.timeline(axes=grid.groups) as record:
        pipeline.record = record
        optimizer.zero_grad()
        grid.forward_backward(batch)
        with record.span("update"):
            optimizer.step()
    pipeline.record = None
    return record
