"""A pipeline in slow motion: each rank as if it had a device of its own, on a machine that has fewer cores than ranks.

Every action does what it always does, and then sleeps until its time is over. A sleeping rank needs no core, so ranks
do not disturb each other, and the measured chart shows the schedule and its messages instead of the machine's cores.
"""

from __future__ import annotations

import time

from torch import Tensor

from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.schedule import Action, Costs, Schedule

UNIT_S = 0.02
"""Seconds of an F, a B or a W, for all the stages of a rank together; a BW takes twice as long."""


def paced_costs(schedule: Schedule) -> Costs:
    """How many seconds an action of a `PacedPipeline` takes: `unit_costs` in seconds."""
    part = UNIT_S * schedule.ranks / schedule.stages
    return Costs(part, part, part)


class PacedPipeline(Pipeline):
    """A `Pipeline` whose actions take as long as `paced_costs` says, unless they take longer by themselves."""

    def _do(self, action: Action, received: Tensor | None) -> Tensor | None:
        end = time.perf_counter() + paced_costs(self.schedule).of(action.kind, action.stage)
        made = super()._do(action, received)
        time.sleep(max(0.0, end - time.perf_counter()))
        return made
