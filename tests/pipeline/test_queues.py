"""NCCL's order without a GPU: a step's sends, receives and waits are noted on gloo, and played again in NCCL's queues.

Two ranks of an NCCL group have one queue: what they send each other starts in the order of the calls, when both have
come to it, and behind whatever the rank's own computing had waited for by then (PyTorch's `ProcessGroupNCCL`).
"""

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


def noted_step(name: str, backend: str) -> tuple[int, list[Call]]:
    """How many groups a pipeline has for its messages on this backend, and this rank's calls in one step."""
    schedule, calls = ORDERS[name](dist.get_world_size(), 8), []
    with mock.patch.object(dist, "get_backend_config", return_value=backend):
        pipeline = Pipeline(schedule, checks.stages_for(schedule, checks.UNTIED))
    groups = list(dict.fromkeys([pipeline.group, pipeline.group_back]))

    def noting(verb: str, call: Any) -> Any:
        def made(tensor: Any, *, group: Any, **to: int) -> Noted:
            (peer,) = to.values()
            calls.append((verb, peer, groups.index(group)))
            return Noted(call(tensor, group=group, **to), len(calls) - 1, calls)

        return made

    sends, receives = noting("send", dist.isend), noting("receive", dist.irecv)
    with mock.patch.multiple(dist, isend=sends, irecv=receives):
        pipeline.forward_backward(checks.pieces(checks.batch_of(0, 8)))
    return len(groups), calls


def stuck(ranks_calls: list[list[Call]]) -> list[int]:
    """The ranks that do not come to the end of their calls, if each pair of ranks has one queue in each group."""
    places, done = [0] * len(ranks_calls), set()
    queues: dict[tuple[int, int, int], deque[tuple[str, int]]] = defaultdict(deque)  # of rank and peer, in a group
    moved = True
    while moved:
        moved = False
        for rank, calls in enumerate(ranks_calls):
            while places[rank] < len(calls):
                verb, other, group = calls[places[rank]]
                if verb == "wait" and (rank, other) not in done:
                    break
                if verb != "wait":
                    queues[rank, other, group].append((verb, places[rank]))
                places[rank] += 1
                moved = True
        for (rank, other, group), mine in list(queues.items()):
            theirs = queues[other, rank, group]
            while mine and theirs and mine[0][0] != theirs[0][0]:
                done |= {(rank, mine.popleft()[1]), (other, theirs.popleft()[1])}
                moved = True
    return [rank for rank, calls in enumerate(ranks_calls) if places[rank] < len(calls)]


def noted_steps(names: list[str], backend: str) -> list[tuple[int, list[Call]]]:
    """`noted_step` for each of these schedules."""
    return [noted_step(name, backend) for name in names]


@pytest.fixture(scope="module")
def by_schedule() -> dict[str, tuple[list[int], list[list[Call]]]]:
    """How many groups each rank has, and its calls, where the backend is said to be NCCL."""
    names = [name for name in ORDERS if name != "pipedream"]
    by_rank = ranks.run(noted_steps, names, "cpu:gloo,cuda:nccl", world_size=4, diagnose=False)
    return {name: tuple(map(list, zip(*steps))) for name, steps in zip(names, zip(*by_rank))}  # type: ignore[misc]


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "pipedream"])
def test_with_a_group_for_each_direction_every_schedule_ends_on_nccl(name: str, by_schedule: Any) -> None:
    n_groups, calls = by_schedule[name]
    assert set(n_groups) == {2} and all(calls)
    assert stuck(calls) == []


def test_with_one_group_1f1b_would_wait_in_a_circle_and_gpipe_would_not() -> None:
    by_rank = ranks.run(noted_steps, ["1f1b", "gpipe"], "cpu:gloo", world_size=4, diagnose=False)
    for steps, waiting in zip(zip(*by_rank), ([0, 1, 2, 3], []), strict=True):
        n_groups, calls = zip(*steps)
        assert set(n_groups) == {1}
        assert stuck(list(calls)) == waiting


@on_ranks(4)
def test_a_grid_has_both_groups_and_a_pipeline_of_some_ranks_asks_for_them() -> None:
    with mock.patch.object(dist, "get_backend_config", return_value="cpu:gloo,cuda:nccl"):
        grid = HybridParallel(checks.UNTIED, Mesh({"pipeline": 2, "data": 2, "tensor": 1}), micro_batches=2)
        with pytest.raises(ValueError, match="give group_back"):
            Pipeline(grid.pipeline.schedule, grid.pipeline.stages, group=grid.groups["pipeline"])
    there, back = grid.pipeline.group, grid.pipeline.group_back
    grid.train_step(grid.optimizer(torch.optim.SGD, lr=0.1), checks.batch_of(0, 4))
    assert there is not back and dist.get_process_group_ranks(there) == dist.get_process_group_ranks(back)
