"""Checks of lesson 09's turns, and the exercises' answers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from course_kit import measure, ranks
from course_kit.notebook.your_turn import Function
from course_lib.model.gpt import GPT
from course_lib.pipeline import schedule as schedules
from course_lib.pipeline.schedule import Schedule, checked, parse, peak_in_flight, problems, simulate
from course_pages.lesson09.runs import SMALL, forward, micro_batches, my_stages


def from_orders(order: Function, stages: int, micro_batches: int) -> Schedule:
    """The schedule in which each stage has the actions that `order(stage, stages, micro_batches)` names, as text."""
    return parse("\n".join(" ".join(order(stage, stages, micro_batches)) for stage in range(stages)))


def check_backward(function: Function) -> None:
    """The whole model's gradients on every rank, in both precisions; one gradient sent by all ranks but the first."""

    def on_each_rank(dtype: torch.dtype) -> tuple[float, int, int, list[str]]:
        (stage,) = my_stages(schedules.naive(dist.get_world_size(), 1), dtype=dtype).values()
        (batch,), whole = micro_batches(0, 1), GPT(SMALL, dtype=dtype)
        x, y = forward(stage, *batch)
        with measure.traffic() as sent, watched_isends() as posted:
            function(x, y)
        whole(*batch).backward()
        right = {name: p.grad for name, p in whole.named_parameters()}
        off = [float("inf") if p.grad is None else _off(p.grad, right[name]) for name, p in stage.named_parameters()]
        states = [each.state for each in posted if each.state]
        return max(off), sent.total_messages, int(sent.total_bytes), states

    for world_size, dtype in ((4, torch.float64), (2, torch.float32)):
        found = ranks.run(on_each_rank, dtype, world_size=world_size)
        case = f"{world_size} ranks in {str(dtype).removeprefix('torch.')}"
        limit = 1e-10 if dtype == torch.float64 else 1e-3
        wrong = [rank for rank, (off, *_) in enumerate(found) if not off < limit]
        assert not wrong, f"{case}: gradients should be the whole model's, but those of ranks {wrong} are not"
        one = 2 * SMALL.context * SMALL.width * dtype.itemsize
        for rank, (_, count, sent_bytes, states) in enumerate(found):
            assert not states, f"{case}: on rank {rank} a tensor that was sent {states[0]}"
            assert (count, sent_bytes) == ((1, one) if rank else (0, 0)), (
                f"{case}: each rank but the first should send its x.grad once, and nothing else, but rank {rank} sends "
                f"{sent_bytes} bytes in {count} messages"
            )


def _off(gradient: Tensor, right: Tensor | None) -> float:
    assert right is not None
    return ((gradient - right).norm() / right.norm()).item()


def check_order(function: Function) -> None:
    """1F1B: a schedule that can be run, with 1F1B's makespan and micro-batches in flight."""
    for stages, count in ((2, 3), (4, 8), (4, 2), (1, 3)):
        schedule, case = _checked(function, stages, count)
        odd = sorted({str(action) for row in schedule.actions for action in row if action.kind not in ("F", "BW")})
        assert not odd, f"{case}: each action should be an F or a whole BW, but there are {', '.join(odd)}"
        held, due = list(map(peak_in_flight, schedule.actions)), [min(count, stages - s) for s in range(stages)]
        more = [rank for rank in range(stages) if held[rank] > due[rank]]
        assert not more, f"{case}: ranks {more} run too far ahead: {[held[rank] for rank in more]} are in flight there"
        took = simulate(schedule).makespan - 3 * (count + stages - 1)
        assert took <= 0, f"{case}: should take no longer than GPipe, but takes {took:g} units more"
        assert held == due, f"{case}: the stages should run as far ahead as the text says, but {held} are in flight"


def check_zero_bubble(function: Function) -> None:
    """ZB-H1: no BW, no rank with more micro-batches in flight than rank 0 has in 1F1B, and a third of 1F1B's bubble."""
    for stages, count in ((2, 4), (4, 8), (4, 12), (3, 3), (4, 2)):
        schedule, case = _checked(function, stages, count)
        whole = sum(action.kind == "BW" for row in schedule.actions for action in row)
        assert not whole, f"{case}: each BW should be taken apart into a B and a W, but {whole} are whole"
        first = [action.micro_batch for action in schedule.actions[0] if action.kind == "F"]
        assert first == sorted(first), f"{case}: micro-batches should go in their order"
        over = [rank for rank, row in enumerate(schedule.actions) if peak_in_flight(row) > stages]
        assert not over, (
            f"{case}: no rank should hold more micro-batches than rank 0 does in 1F1B, but ranks {over} do: a "
            "micro-batch is held until its W"
        )
        chart = simulate(schedule)
        assert chart.idle(0) <= stages - 1 or count < stages, (
            f"{case}: rank 0 should idle for a third of what it idles for in 1F1B, "
            f"but idles for {chart.idle(0):g} units of {chart.makespan:g}"
        )


def _checked(function: Function, stages: int, count: int) -> tuple[Schedule, str]:
    case = f"{stages} stages, {count} micro-batches"
    schedule = from_orders(function, stages, count)
    assert not (found := problems(schedule)), f"{case}: {found[0]}"
    shape = (schedule.ranks, schedule.stages, schedule.micro_batches)
    assert shape == (stages, stages, count), f"{case}: all micro-batches should be there, one stage a rank"
    return schedule, case


class _Posted:
    """The handle of an `isend` whose tensor leaves at the last moment: a change before `wait` is noticed every time."""

    def __init__(self, work: Any, tensor: Tensor) -> None:
        self._work, self._tensor, self._sent = work, tensor, tensor.clone()
        self.waited, self.state = False, "was posted and never waited for: keep its handle"

    def wait(self, *arguments: Any) -> Any:
        self.waited, changed = True, not torch.equal(self._tensor, self._sent)
        self.state = "changed before its wait() was over: what has not left may be read until then" if changed else ""
        return self._work.wait(*arguments)

    def leave(self) -> None:
        """Let the message go for a reader who has not waited: the other end is to get it all the same."""
        if not self.waited:  # a second wait would never end
            self._work.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


@contextmanager
def watched_isends() -> Iterator[list[_Posted]]:
    """All sends that are posted meanwhile, as handles that know whether their tensor was changed too early."""
    real, posted = dist.isend, []

    @functools.wraps(real)
    def isend(tensor: Tensor, *arguments: Any, **named: Any) -> _Posted:
        posted.append(_Posted(real(tensor.clone(), *arguments, **named), tensor))
        return posted[-1]

    try:
        dist.isend = distributed_c10d.isend = isend  # type: ignore[assignment]
        yield posted
        for each in posted:
            each.leave()
    finally:
        dist.isend = distributed_c10d.isend = real


def check_ends(function: Function) -> None:
    """The sum on both ends, in the tensor that was given; one message each way, unchanged on its way."""

    def on_each_rank(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[bool, int, int, list[str]]:
        rank, last = dist.get_rank(), dist.get_world_size() - 1
        if rank not in (0, last):
            return True, 0, 0, []
        parts = [torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(end)) for end in (0, last)]
        gradient = parts[rank > 0].clone()
        with measure.traffic() as sent, watched_isends() as posted:
            function(gradient, last - rank)
        right = torch.equal(gradient, parts[0] + parts[1])
        return right, sent.total_messages, int(sent.total_bytes), [each.state for each in posted if each.state]

    for world_size, shape, dtype in ((4, (256, 64), torch.float64), (3, (5,), torch.float32)):
        found = ranks.run(on_each_rank, shape, dtype, world_size=world_size, timeout_s=30)
        for rank in (0, world_size - 1):
            right, count, sent_bytes, states = found[rank]
            assert not states, f"on rank {rank} a tensor that was sent {states[0]}"
            assert right, (
                f"with ends 0 and {world_size - 1}, the tensor that was given to rank {rank} should "
                "hold the sum of both parts afterwards, but does not"
            )
            one = torch.empty(shape, dtype=dtype).nbytes
            assert (count, sent_bytes) == (1, one), (
                f"each end should send its part once, {one} bytes, but rank {rank} sends {sent_bytes} bytes "
                f"in {count} messages"
            )


EXERCISES = (
    next(m for m in range(1, 100) if simulate(schedules.gpipe(8, m)).bubble <= 0.1),
    peak_in_flight(schedules.one_f_one_b(16, 64).actions[5]),
)
"""Answers to exercises 1 and 2: micro-batches, for a tenth of idle time; in flight on stage 5 of 16."""


def units_of_two(text: str | None) -> float | None:
    """Units of time of a schedule for two ranks and two micro-batches, None for None; ValueError for another one."""
    if text is None:
        return None
    schedule = checked(parse(text))
    rows, count = schedule.ranks, schedule.micro_batches
    if (rows, count) != (2, 2):
        raise ValueError(f"{rows} ranks, {count} micro-batches: write two lines, each with micro-batches 0 and 1")
    return simulate(schedule).makespan
