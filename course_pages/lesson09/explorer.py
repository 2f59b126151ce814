"""The pipeline explorer: a schedule as a Gantt chart, its bubble and its peak, and actions that can be moved.

Choose a schedule, stages and micro-batches; then take an action and move it one place along its rank. Where that
cannot be, the page says why, as `schedule.problems` does. The table holds the order of every schedule and the
sentences; since readers move actions wherever they like, the script plays the order again after each move, as
`schedule.simulate` does with unit costs. `explorer.schedule_now` is the page's schedule, ready to be run on ranks.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import traitlets

from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import Picture
from course_lib.pipeline.schedule import ORDERS, Schedule, checked, parse, problems, simulate
from course_lib.pipeline.schedule.validate import NAMES, REASONS, WAITS, WAITS_FOR_ITSELF
from course_pages.lesson09.pictures import pipeline_charts

STAGES, MICRO_BATCHES = (2, 3, 4, 6, 8), (1, 2, 4, 6, 8, 12, 16)
"""Values of two sliders."""


@cache
def pipeline_table() -> dict[str, Any]:
    """Every schedule before any move, and the sentences about wrong ones.

    Returns:
        "orders": name → number of ranks → number of micro-batches → the schedule as text, or "why" there is none.
        "kinds", "reasons", "waits", "waits_for_itself": parts of the sentences of `schedule.problems`.
    """
    orders = {
        name: {ranks: {count: _order(name, ranks, count) for count in MICRO_BATCHES} for ranks in STAGES}
        for name in ORDERS
    }
    words = {"kinds": NAMES, "reasons": REASONS, "waits": WAITS, "waits_for_itself": WAITS_FOR_ITSELF}
    return {"orders": orders} | words


def _order(name: str, ranks: int, micro_batches: int) -> str | dict[str, str]:
    try:
        return str(ORDERS[name](ranks, micro_batches))
    except ValueError as problem:
        return {"why": str(problem)}


class PipelineExplorer(Explorer):
    """A pipeline schedule to look at and to take apart, at unit costs.

    Args:
        schedule: one of `ORDERS`; interleaved and zb-v give each rank two short stages.
        stages: the number of ranks.
        micro_batches: number of micro-batches in a step.

    Attributes:
        moved: the schedule as text while actions stand elsewhere than in `schedule`; else empty.
    """

    caption = "Each row is a rank, white is waiting. Take an action and move it along its rank."
    schedule = Control("Schedule", list(ORDERS), "1f1b", kind="choice")
    stages = Control("Ranks", STAGES, 4)
    micro_batches = Control("Micro-batches", MICRO_BATCHES, 8)
    moved = traitlets.Unicode().tag(sync=True)
    _table = staticmethod(pipeline_table)

    @property
    def schedule_now(self) -> Schedule:
        """Schedule that the page shows, after all moves.

        Raises:
            ValueError: there is no such schedule, or it cannot be run.
        """
        if self.moved:
            return checked(parse(self.moved, f"{self.schedule}, moved"))
        return ORDERS[self.schedule](self.stages, self.micro_batches)

    @traitlets.observe("schedule", "stages", "micro_batches")
    def _forget_moves(self, _change: object) -> None:
        first = pipeline_table()["orders"][self.schedule][self.stages][self.micro_batches]
        if not isinstance(first, str) or sorted(first.split()) != sorted(self.moved.split()):  # of another schedule
            self.moved = ""

    @traitlets.validate("moved")
    def _check_moved(self, proposal: traitlets.Bunch) -> str:
        if proposal["value"] and (found := problems(parse(proposal["value"]))):
            raise traitlets.TraitError(found[0])
        return proposal["value"]

    def _picture(self, *, caption: str, alt: str) -> Picture:
        charts = {self.schedule_now.name: simulate(self.schedule_now)}
        return pipeline_charts(charts, "units", 1, caption=caption, alt=alt)

    def _told(self) -> str:
        now = self.schedule_now
        chart, part = simulate(now), now.ranks / now.stages
        peaks = ", ".join(f"{peak * part:g}" for peak in chart.peak_in_flight)
        return (
            f"{now.name} on {now.ranks} ranks with {now.micro_batches} micro-batches: done after {chart.makespan:g} "
            f"units of time, {chart.bubble:.0%} of all time is idle, {chart.bubble_over_ideal:.0%} over the ideal. In "
            f"flight at most, from rank 0 on: {peaks}."
        )
