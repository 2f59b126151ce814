"""A schedule played on paper: start and end of each action, each rank's idle time, and the chart.

    chart = simulate(one_f_one_b(4, 8))
    chart.makespan, chart.bubble              # 33.0 and 3/11
    chart.peak_in_flight                      # [4, 3, 2, 1]
    print(chart)

A run on real ranks fills the same `Gantt` (`gantt_of`), so measured and ideal charts have the same properties.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.pipeline.schedule.actions import Action, Kind, Message, Schedule, peak_in_flight
from course_lib.pipeline.schedule.validate import checked

Cost = float | Sequence[float]
"""One number for all stages, or one for each."""


@dataclass(frozen=True)
class Costs:
    """The time of an action, in any unit. A BW takes as long as B and W together.

    Attributes:
        forward, input_gradient, weight_gradient, update: the time of an F, a B, a W and a U.
        transfer: the time from the end of an action until another rank has its message; it keeps no rank busy.
    """

    forward: Cost = 1.0
    input_gradient: Cost = 1.0
    weight_gradient: Cost = 1.0
    update: Cost = 0.0
    transfer: float = 0.0

    def of(self, kind: Kind, stage: int) -> float:
        """The time of one action of this kind on a stage."""
        if kind == "BW":
            return _at(self.input_gradient, stage) + _at(self.weight_gradient, stage)
        costs = {"F": self.forward, "B": self.input_gradient, "W": self.weight_gradient, "U": self.update}
        return _at(costs[kind], stage)


def unit_costs(schedule: Schedule, unit: float = 1.0) -> Costs:
    """Costs of a unit for F, B and W of a rank's stages together: with two stages a rank, half of it for each stage."""
    part = unit * schedule.ranks / schedule.stages  # a unit where each rank has one stage
    return Costs(part, part, part)


class Span(NamedTuple):
    """One bar of the chart."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Gantt:
    """Start and end of every rank's actions: simulated, or measured on real ranks (then in seconds).

    Attributes:
        name: the schedule's name.
        spans: rank → its bars, in order, from time 0 on.
    """

    name: str
    spans: tuple[tuple[Span, ...], ...]

    @property
    def makespan(self) -> float:
        """The time at which the last rank is done."""
        return max(spans[-1].end for spans in self.spans)

    def busy(self, rank: int) -> float:
        """The time for which a rank works."""
        return sum(span.end - span.start for span in self.spans[rank])

    def idle(self, rank: int) -> float:
        """The time for which a rank waits, between time 0 and the end of the last rank."""
        return self.makespan - self.busy(rank)

    @property
    def bubble(self) -> float:
        """Idle time over all time, summed over ranks: the GPipe paper's fraction, between 0 and 1."""
        return self._total_idle / (self.makespan * len(self.spans))  # white over the whole chart

    @property
    def bubble_over_ideal(self) -> float:
        """Idle time over working time: Narayanan et al.'s convention, which may exceed 1."""
        return self._total_idle / sum(self.busy(rank) for rank in range(len(self.spans)))  # white over colour

    @property
    def bubble_without_sync(self) -> float:
        """Idle time over working time if no rank waits for another one between two steps, of the rank that waits
        longest between its first action and its last. Qi et al. 2023 count so (x, or their "bubble rate" x / (1 + x))
        and let ranks step by themselves, which a global gradient norm would forbid (§4, §5.3).
        """
        return max((spans[-1].end - spans[0].start) / self.busy(rank) - 1 for rank, spans in enumerate(self.spans))

    @property
    def peak_in_flight(self) -> list[int]:
        """Each rank's largest number of (stage, micro-batch) pairs between forward and last backward pass."""
        return [peak_in_flight(span.action for span in spans) for spans in self.spans]

    @property
    def _total_idle(self) -> float:
        return sum(self.idle(rank) for rank in range(len(self.spans)))

    def __str__(self) -> str:
        """The chart as text: a line for each rank, a column for the time of the shortest action."""
        unit = min(span.end - span.start for spans in self.spans for span in spans if span.end > span.start)
        width = max(len(str(span.action)) for spans in self.spans for span in spans)
        lines = []
        for rank, spans in enumerate(self.spans):
            cells = ["." * width] * round(self.makespan / unit)
            for action, start, end in spans:
                first, last = round(start / unit), round(end / unit)
                if last > first:  # an update at no cost has no column
                    cells[first:last] = [str(action).ljust(width, "-")] + ["-" * width] * (last - first - 1)
            lines.append(f"rank {rank}  " + " ".join(cells))
        return "\n".join(lines)


def simulate(schedule: Schedule, costs: Costs | None = None) -> Gantt:
    """Play a schedule: each action starts as soon as its rank is free and its message is there.

    Actions cost `unit_costs`, unless `costs` says otherwise.

    Raises:
        ValueError: the schedule cannot be carried out; all reasons.
    """
    costs = unit_costs(schedule) if costs is None else costs
    spans: list[list[Span]] = [[] for _ in schedule.actions]
    arrival: dict[Message, float] = {}
    waiting: dict[Message, int] = {}  # message → the rank that can go on when the message is there
    ready = deque(range(schedule.ranks))
    while ready:
        rank = ready.popleft()
        actions, done = schedule.actions[rank], spans[rank]
        free = done[-1].end if done else 0.0  # when the rank has nothing to do any more
        while len(done) < len(actions):
            action = actions[len(done)]
            needed, made = schedule.consumes(action), schedule.produces(action)
            if needed is not None and needed not in arrival:
                waiting[needed] = rank
                break
            start = free if needed is None else max(free, arrival.pop(needed))  # the later of rank and message
            free = start + costs.of(action.kind, action.stage)
            done.append(Span(action, start, free))
            if made is not None:
                stays = schedule.rank_of(made.stage, made.micro_batch) == rank
                arrival[made] = free if stays else free + costs.transfer
                if made in waiting:  # a rank has stopped at this message: it gets another turn
                    ready.append(waiting.pop(made))
    if [len(each) for each in spans] != [len(each) for each in schedule.actions]:  # ranks wait for ever
        checked(schedule)
    return Gantt(schedule.name, tuple(map(tuple, spans)))


def gantt_of(name: str, records: Sequence[Sequence[Span]]) -> Gantt:
    """Make the chart of all ranks' recorded spans, in seconds since the first rank began."""
    begin = min(record[0].start for record in records)  # ranks of a machine share its clock
    return Gantt(name, tuple(tuple(Span(a, s - begin, e - begin) for a, s, e in record) for record in records))


def _at(cost: Cost, stage: int) -> float:
    return cost if isinstance(cost, int | float) else cost[stage]
