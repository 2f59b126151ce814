"""Checks of who sends what to whom: what crosses between two sets of ranks, and with what it was sent."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from course_kit.accounts import TrafficAccount
from course_kit.checks import CheckFailed, check
from course_kit.units import Bytes
from tests.checks.conftest import refused


def everyone(tensor: torch.Tensor, barrier: bool = False) -> int:
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
    return me


@pytest.fixture(scope="module")
def accounts() -> list[TrafficAccount]:
    results, accounts = check.traffic(everyone, torch.zeros(4), world_size=4)
    assert results == [0, 1, 2, 3]
    return accounts


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
    first, second = capsys.readouterr().out.splitlines()
    assert first == "✓ nothing but send, isend, recv and irecv"
    assert second.startswith("✓ … 156 B sent by the calls of all ranks")


def in_secret(tensor: torch.Tensor, how: str, openly: bool = False) -> None:
    """Two ranks swap a tensor, and nobody counts it; with messages beside it that are counted."""
    if openly:
        everyone(tensor[:2])
    other = 1 - dist.get_rank()

    def swap() -> None:
        posted = dist.isend(tensor, other)
        dist.recv(torch.empty_like(tensor), other)
        assert posted is not None
        posted.wait()

    if how == "a thread":
        thread = threading.Thread(target=swap)
        thread.start()
        thread.join()
    elif how == "modes off":
        with _disable_current_modes():
            swap()
    else:
        assert dist.group.WORLD is not None
        dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([tensor]).wait()  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["a thread", "modes off", "the backend's own object"])
def test_what_is_sent_in_secret_is_seen_at_the_sockets(how):
    _, sent = check.traffic(in_secret, torch.zeros(5000), how, world_size=2)
    assert "by their calls" in refused(check.carried, sent, least=1)
    _, sent = check.traffic(in_secret, torch.zeros(5000), how, openly=True, world_size=2)
    with pytest.raises(CheckFailed, match="(?s)sockets of all ranks carried.*at most.*who sends besides"):
        check.only_messages(sent)


def test_what_was_counted_and_never_left_is_noticed():
    counted = {"send": Bytes(1000)}, {"send": 1}
    assert "nobody receives" in refused(check.carried, [TrafficAccount(Bytes(300), *counted)])
    check.carried([TrafficAccount(Bytes(1144), *counted)])
    check.carried([TrafficAccount(None, *counted)])  # where the system does not count


def with_collectives(tensor: torch.Tensor) -> None:
    """What gloo sends for the library's own is more than a formula says, and still no secret."""
    p = dist.get_world_size()
    dist.all_reduce(tensor)
    dist.all_gather([torch.empty_like(tensor) for _ in range(p)], tensor)
    dist.broadcast(tensor, 0)
    dist.reduce_scatter(torch.empty_like(tensor), [tensor] * p)
    dist.barrier()


@pytest.mark.parametrize(("n", "p"), [(3, 2), (3, 4), (60_000, 4)])
def test_collectives_are_carried_as_counted(n, p):
    _, sent = check.traffic(with_collectives, torch.zeros(n), world_size=p)
    check.carried(sent, least=1)


def test_one_collective_among_the_messages_is_refused():
    _, with_barrier = check.traffic(everyone, torch.zeros(4), barrier=True, world_size=4)
    assert "also barrier" in refused(check.only_messages, with_barrier)
    assert check.crossing(with_barrier, [0], [1]) == (4, 1)  # and it is on no link
