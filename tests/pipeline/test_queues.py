"""NCCL's order without a GPU: a step's sends, receives and waits are noted on gloo, and played again in NCCL's queues.

Two ranks of an NCCL group have one queue: what they send each other starts in the order of the calls, when both have
come to it, and behind whatever the rank's own computing had waited for by then (PyTorch's `ProcessGroupNCCL`).
"""

import dataclasses
import functools
from collections import defaultdict, deque
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from course_kit import ranks
from course_lib.parallel.hybrid import HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.schedule import ORDERS
from tests.parallel.judging import on_ranks
from tests.pipeline import pipeline_checks as checks

Call = tuple[str, int, int]
"""A verb ("send", "receive" or "wait") and: the peer and the group's number, or the number of the call waited for."""


class Noted:
    """A handle that notes when it is waited for."""

    def __init__(self, work: dist.Work, number: int, calls: list[Call]) -> None:
        self.work, self.number, self.calls = work, number, calls

    def wait(self) -> None:
        self.calls.append(("wait", self.number, 0))
        self.work.wait()


def noted_step(name: str, backend: str, tied: bool = True, meets: bool = True) -> tuple[int, list[Call]]:
    """How many groups a pipeline has for its messages on this backend, and this rank's calls in its first step.

    Where a schedule steps inside, weights are not tied.
    """
    schedule, calls = ORDERS[name](dist.get_world_size(), 2 * dist.get_world_size()), []
    config = dataclasses.replace(checks.TIED, layers=schedule.stages, tied=tied and not schedule.is_asynchronous)
    stages = checks.stages_for(schedule, config)
    optimizer = torch.optim.SGD(checks.parameters_of(stages), lr=0.1) if schedule.is_asynchronous else None
    is_said_to_be = mock.patch.object(dist, "get_backend_config", return_value=backend)
    with is_said_to_be:
        pipeline = Pipeline(schedule, stages, optimizer=optimizer)
    pipeline._has_met = not meets
    groups = list(dict.fromkeys([pipeline.group, pipeline.group_back]))

    def noting(verb: str, call: Any) -> Any:
        def made(tensor: Any, *, group: Any, **to: int) -> Noted:
            (peer,) = to.values()
            calls.append((verb, peer, groups.index(group)))
            return Noted(call(tensor, group=group, **to), len(calls) - 1, calls)

        return made

    posts = {"isend": noting("send", dist.isend), "irecv": noting("receive", dist.irecv)}

    def waiting(verb: str) -> Any:
        return lambda tensor, **where: posts[verb](tensor, **where).wait()

    with is_said_to_be, mock.patch.multiple(dist, **posts, send=waiting("isend"), recv=waiting("irecv")):
        pipeline.forward_backward(checks.pieces(checks.batch_of(0, schedule.micro_batches)))
    return len(groups), calls


def stuck(ranks_calls: list[list[Call]], device_id: bool = False) -> list[int]:
    """The ranks that do not come to the end of their calls.

    Each pair of ranks has one queue in each group, made at first use: there both wait for each other, outside of any
    queue. With `device_id` all of a group's queues are there from the start, and all of a rank's are one.
    """
    places, done = [0] * len(ranks_calls), set()
    met: set[tuple[frozenset[int], int]] = set()
    queues: dict[tuple[int, int, int | None], deque[tuple[str, int, int]]] = defaultdict(deque)

    def passes(rank: int) -> bool:
        """Whether a rank's program goes on behind its next call."""
        verb, other, group = ranks_calls[rank][places[rank]]
        if verb == "wait":
            return (rank, other) in done
        there = ranks_calls[other][places[other] :]
        if there and there[0][0] != "wait" and there[0][1:] == (rank, group):
            met.add((frozenset((rank, other)), group))
        return device_id or (frozenset((rank, other)), group) in met

    moved = True
    while moved:
        moved = False
        for rank, calls in enumerate(ranks_calls):
            while places[rank] < len(calls) and passes(rank):
                verb, other, group = calls[places[rank]]
                if verb != "wait":
                    queues[rank, group, None if device_id else other].append((verb, other, places[rank]))
                places[rank] += 1
                moved = True
        for (rank, group, of), mine in list(queues.items()):
            while mine:
                verb, other, number = mine[0]
                theirs = queues[other, group, None if of is None else rank]
                if not theirs or theirs[0][1] != rank or theirs[0][0] == verb:
                    break
                done |= {(rank, number), (other, theirs[0][2])}
                mine.popleft()
                theirs.popleft()
                moved = True
    return [rank for rank, calls in enumerate(ranks_calls) if places[rank] < len(calls)]


def noted_steps(steps: list[tuple[Any, ...]]) -> list[tuple[int, list[Call]]]:
    """`noted_step` for each of these arguments."""
    return [noted_step(*step) for step in steps]


def noted(world_size: int, steps: list[tuple[Any, ...]]) -> list[tuple[set[int], list[list[Call]]]]:
    """For each step the numbers of groups that ranks have, and each rank's calls."""
    by_rank = ranks.run(noted_steps, steps, world_size=world_size, timeout_s=120, diagnose=False)
    by_step = [tuple(zip(*step)) for step in zip(*by_rank)]
    return [(set(n_groups), list(calls)) for n_groups, calls in by_step]


@functools.cache
def on_nccl(world_size: int) -> dict[str, tuple[set[int], list[list[Call]]]]:
    """Of every schedule."""
    return dict(zip(ORDERS, noted(world_size, [(name, "cpu:nccl") for name in ORDERS])))


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("world_size", [4, *(pytest.param(n, marks=pytest.mark.nightly) for n in (2, 3, 5, 6, 7, 8))])
def test_with_a_group_for_each_direction_and_a_meeting_every_schedule_ends_on_nccl(world_size: int, name: str) -> None:
    n_groups, calls = on_nccl(world_size)[name]
    assert n_groups == {2} and all(calls)
    assert stuck(calls) == []


def test_without_the_meeting_interleaved_would_wait_in_a_circle_and_with_device_id_1f1b() -> None:
    [(_, calls)] = noted(4, [("interleaved", "cpu:nccl", False, False)])
    assert stuck(calls) == [0, 1, 2, 3]
    assert stuck(on_nccl(4)["1f1b"][1], device_id=True) == [0, 1, 2, 3]


def test_with_one_group_1f1b_would_wait_in_a_circle_and_gpipe_at_a_tied_weight_alone() -> None:
    steps = {("1f1b", "cpu:gloo", False): [0, 1, 2, 3], ("gpipe", "cpu:gloo", False): [], ("gpipe", "cpu:gloo"): [0, 3]}
    for (n_groups, calls), waiting in zip(noted(4, list(steps)), steps.values()):
        assert n_groups == {1}
        assert stuck(calls) == waiting


@on_ranks(4)
def test_a_grid_has_both_groups_and_a_pipeline_of_some_ranks_asks_for_them() -> None:
    with mock.patch.object(dist, "get_backend_config", return_value="cpu:gloo,cuda:nccl"):
        grid = HybridParallel(checks.UNTIED, Mesh({"pipeline": 2, "data": 2, "tensor": 1}), micro_batches=2)
        with pytest.raises(ValueError, match="give group_back"):
            Pipeline(grid.pipeline.schedule, grid.pipeline.stages, group=grid.groups["pipeline"])
    there, back = grid.pipeline.group, grid.pipeline.group_back
    grid.train_step(grid.optimizer(torch.optim.SGD, lr=0.1), checks.batch_of(0, 4))
    assert there is not back and dist.get_process_group_ranks(there) == dist.get_process_group_ranks(back)
