"""Checks of who sends what to whom: what crosses between two sets of ranks, and with what it was sent."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib.accounts import TrafficAccount
from course_lib.checks import CheckFailed, check


def everyone(tensor: torch.Tensor, barrier: bool = False) -> None:
    """Rank r sends r + 1 elements to each other rank, and once more to rank 0."""
    me, p = dist.get_rank(), dist.get_world_size()
    others = [rank for rank in range(p) if rank != me]
    posted = [dist.isend(tensor[: me + 1], other) for other in others]
    posted += [dist.irecv(torch.empty(other + 1), other) for other in others]
    posted += [dist.isend(tensor[: me + 1], 0)] if me else [dist.irecv(torch.empty(r + 1), r) for r in others]
    for each in posted:
        assert each is not None
        each.wait()
    if barrier:
        dist.barrier()


@pytest.fixture(scope="module")
def accounts() -> list[TrafficAccount]:
    return check.traffic(everyone, torch.zeros(4), world_size=4)[1]


@pytest.mark.parametrize(
    ("here", "there", "n_bytes", "messages"),
    [
        ([0, 1], [2, 3], 2 * 4 + 2 * 8, 4),
        ([2, 3], [0, 1], 3 * 12 + 3 * 16, 6),  # rank 0 gets everything twice
        ([3], [0], 2 * 16, 2),
        (range(4), range(4), 3 * 4 + 4 * 8 + 4 * 12 + 4 * 16, 15),
        ([], [0], 0, 0),
    ],
)
def test_what_crosses_is_what_was_sent_there(accounts, here, there, n_bytes, messages):
    assert check.crossing(accounts, here, there) == (n_bytes, messages)


def test_messages_alone_are_fine(accounts, capsys):
    check.only_messages(accounts)
    assert capsys.readouterr().out == "✓ nothing but send, isend, recv and irecv\n"


def test_one_collective_among_the_messages_is_refused():
    _, with_barrier = check.traffic(everyone, torch.zeros(4), barrier=True, world_size=4)
    with pytest.raises(CheckFailed, match="also barrier"):
        check.only_messages(with_barrier)
    assert check.crossing(with_barrier, [0], [1]) == (4, 1)  # and it is on no link
