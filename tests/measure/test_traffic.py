"""`measure.traffic` on real gloo ranks: exact for send, modelled for collectives, and what the kernel saw."""

import inspect
import sys
from collections.abc import Callable
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d, send
from torch.nn.parallel import DistributedDataParallel

from course_kit import measure, ranks
from course_kit.accounts import ModelledBytes, TrafficAccount
from course_kit.checks import socket_bytes
from course_kit.communications import COMMUNICATIONS
from course_kit.compare import compare
from course_kit.units import Bytes

ON_LINUX = sys.platform.startswith("linux")
N = 250_000  # floats: 1 MB


def test_outside_of_a_process_group_nothing_is_counted():
    with measure.traffic() as sent:
        _ = torch.ones(10) + 1
    assert sent.total_bytes == 0 and sent.total_messages == 0 and sent.observed_bytes is None


def test_every_operation_that_sends_is_known():
    """A new operation of torch.distributed must be put into the table, or be known to send nothing by itself."""
    schemas = (schema.name for schema in torch._C._jit_get_all_schemas())
    names = {name for name in schemas if name.startswith(("c10d::", "_c10d_functional::"))}
    silent = {"c10d::check_for_nan", "_c10d_functional::_wrap_tensor_autograd"}
    not_counted = {"_c10d_functional::batch_p2p_ops"}  # for compiled graphs: made of isend and irecv
    assert names - set(COMMUNICATIONS) - silent - not_counted == set()


def test_every_argument_of_the_table_exists():
    schemas = {s.name: [a.name for a in s.arguments] for s in torch._C._jit_get_all_schemas()}
    for called, found in COMMUNICATIONS.items():
        space, _, function = called.rpartition(".")
        if space == "dist":
            arguments = list(inspect.signature(getattr(distributed_c10d, function)).parameters)
        else:
            arguments = schemas[called]
        assert not found.holds or found.holds in arguments, called


def sum_up(backends: str) -> TrafficAccount:
    """An all-reduce of 24 bytes on the CPU, whose backends are said to be these."""
    is_said_to_be = mock.patch.object(dist, "get_backend_config", return_value=backends)
    with is_said_to_be, measure.traffic() as sent:
        dist.all_reduce(torch.ones(6))
    return sent


@pytest.mark.skipif(not ON_LINUX, reason="only Linux counts the bytes of a socket")
def test_what_nccl_moves_is_not_observed_although_gloo_is_there_for_other_devices():
    """The sockets' count would be near 0, and is no count of what went past them: the formula's bytes say so."""
    calls = ("cpu:gloo,cuda:nccl", True), ("cpu:nccl,cuda:gloo", False)  # CPU tensors stand in for a GPU's
    for backends, seen in calls:
        accounts = ranks.run(sum_up, backends, world_size=2)
        for sent in accounts:
            assert (sent.observed_bytes is not None) == seen == bool(sent.observed_by_connection)
            assert ("modelled" in str(compare(predicted=24, measured=sent.sent_bytes, tolerance=None))) != seen
            assert sent.total_bytes == 24
        socket_bytes.carried(accounts, least=48)


def test_what_a_formula_made_says_so_and_a_count_does_not():
    collective = TrafficAccount(modelled_bytes={"all_reduce": ModelledBytes(6), "send": Bytes(4)})
    sends = TrafficAccount(modelled_bytes={"send": Bytes(4)})
    assert type(collective.total_bytes) is ModelledBytes and collective.total_bytes == 10
    assert type(sends.total_bytes) is Bytes and sends.sent_bytes == 4
    results = Bytes(4) + ModelledBytes(6), ModelledBytes(6) - Bytes(4), 2 * ModelledBytes(6)
    assert {type(result) for result in results} == {ModelledBytes}
    observed = TrafficAccount(observed_bytes=Bytes(11), modelled_bytes=collective.modelled_bytes)
    assert type(observed.sent_bytes) is Bytes and observed.sent_bytes == 11
    assert type(collective.sent_bytes) is ModelledBytes, "where nobody counts"
    assert "10 B modelled" in str(compare(predicted=Bytes(10), measured=collective.sent_bytes))
    assert "modelled" not in str(compare(predicted=Bytes(11), measured=observed.sent_bytes))


class Tensors:
    """Tensors of one rank of p: its own, one for each rank, and these where the rank is the root, which is rank 1."""

    def __init__(self, elements: int) -> None:
        self.p, self.rank = dist.get_world_size(), dist.get_rank()
        self.x, self.parts = torch.ones(elements), [torch.ones(elements) for _ in range(self.p)]
        self.root_parts = self.parts if self.rank == 1 else None


CHILDREN = {2: (1, 0), 3: (2, 0, 0), 4: (2, 1, 0, 0)}
"""Of gloo's tree, by number of ranks, for the root, the rank after it, and so on."""
COLLECTIVES: dict[str, tuple[Callable[[Tensors], object], Callable[[int, int], float]]] = {
    # name → the call, and the share of n bytes that a rank of p sends, by hand, `turn` ranks after the root
    "all_reduce": (lambda t: dist.all_reduce(t.x), lambda p, turn: 2 * (p - 1) / p),
    "broadcast": (lambda t: dist.broadcast(t.x, src=1), lambda p, turn: CHILDREN[p][turn]),
    "reduce": (lambda t: dist.reduce(t.x, dst=1), lambda p, turn: 1 if turn else (p - 1) / p),
    "all_gather": (lambda t: dist.all_gather(t.parts, t.x), lambda p, turn: p - 1),
    "reduce_scatter": (lambda t: dist.reduce_scatter(t.x, t.parts), lambda p, turn: p - 1),
    "all_to_all": (lambda t: dist.all_to_all_single(t.x.clone(), t.x), lambda p, turn: (p - 1) / p),
    "gather": (lambda t: dist.gather(t.x, t.root_parts, dst=1), lambda p, turn: 1 if turn else 0),
    "scatter": (lambda t: dist.scatter(t.x, t.root_parts, src=1), lambda p, turn: 0 if turn else p - 1),
    "barrier": (lambda t: dist.barrier(), lambda p, turn: 0),
}


def on_rank(name: str, elements: int) -> TrafficAccount:
    """One collective, inside a record; what happens outside of it must not count."""
    tensors = Tensors(elements)
    dist.all_reduce(torch.ones(1000))
    with measure.traffic() as sent:
        COLLECTIVES[name][0](tensors)
    dist.all_reduce(torch.ones(1000))
    return sent


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_sends_its_share(name, world_size):
    elements = 12 * (N // 12)  # so that it splits evenly
    accounts = ranks.run(on_rank, name, elements, world_size=world_size)
    for rank, sent in enumerate(accounts):
        expected = 4 * elements * COLLECTIVES[name][1](world_size, (rank - 1) % world_size)
        assert dict(sent.modelled_bytes) == {name: expected} and dict(sent.messages) == {name: 1}
        if ON_LINUX:
            # gloo's reduce-scatter is an all-reduce that throws most away: the wire tells what the formula hides
            really = 2 * expected if name == "reduce_scatter" else expected
            assert really <= sent.observed_bytes <= 1.01 * really + 1000


def point_to_point() -> dict[str, TrafficAccount]:
    p, rank = dist.get_world_size(), dist.get_rank()
    x, y = torch.ones(N), torch.empty(N)
    right, left = (rank + 1) % p, (rank - 1) % p
    with measure.traffic() as blocking:
        dist.send(x[:10], right) if rank == 0 else dist.recv(y[:10], left)
        dist.recv(y[:10], left) if rank == 0 else dist.send(x[:10], right)
    with measure.traffic() as imported:  # bound before the record was opened, or reached by another name
        send(x[:7], right) if rank == 0 else distributed_c10d.recv(y[:7], left)
        dist.recv(y[:7], left) if rank == 0 else distributed_c10d.send(x[:7], right)
    with measure.traffic() as batched:
        for _ in range(3):
            operations = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
    with measure.traffic() as half:
        works = [dist.isend(x.half()[::2].contiguous(), right), dist.irecv(y.half()[::2].contiguous(), left)]
        for work in works:
            assert work is not None
            work.wait()
    return {"blocking": blocking, "imported": imported, "batched": batched, "half": half}


@pytest.mark.parametrize("diagnose", [True, False])
def test_send_is_exact_whatever_name_it_is_called_by(diagnose):
    with ranks.Ranks(world_size=2, diagnose=diagnose) as pool:
        accounts = pool.run(point_to_point)
    for sent in accounts:
        assert dict(sent["blocking"].modelled_bytes) == {"send": 40} and sent["blocking"].total_messages == 1
        assert dict(sent["imported"].modelled_bytes) == {"send": 28}
        assert sent["batched"].total_bytes == 3 * 4 * N and dict(sent["batched"].messages) == {"send": 3}
        assert sent["half"].total_bytes == N
        if ON_LINUX:
            assert 3 * 4 * N <= sent["batched"].observed_bytes <= 1.001 * 3 * 4 * N + 1000


def letters() -> tuple[TrafficAccount, TrafficAccount]:
    """Rank 0 writes to 1 twice and to 2 once; then 1 and 3 write to each other inside a group, in which they are 1, 0.

    An all-reduce goes with it, which says nothing about its destinations.
    """
    rank, x = dist.get_rank(), torch.ones(5)
    group = dist.new_group([3, 1])
    with measure.traffic() as sent:
        dist.all_reduce(torch.ones(4))
        if rank == 0:
            for to, length in ((1, 5), (2, 3), (1, 1)):
                dist.send(x[:length], to)
        elif rank < 3:
            for length in (5, 1) if rank == 1 else (3,):
                dist.recv(x[:length], 0)
    with measure.traffic() as within:
        if rank in (1, 3):
            assert not isinstance(group, int)
            other = 4 - rank
            works = [dist.isend(x[:2], other, group=group), dist.irecv(torch.empty(2), other, group=group)]
            assert all(work is not None and work.wait() for work in works)
    return sent, within


def test_messages_are_told_apart_by_destination():
    accounts = ranks.run(letters, world_size=4)
    sent = [account for account, _ in accounts]
    assert dict(sent[0].bytes_to) == {1: 24, 2: 12} and dict(sent[0].messages_to) == {1: 2, 2: 1}
    assert not any(account.bytes_to or account.messages_to for account in sent[1:])
    assert all(account.modelled_bytes["all_reduce"] == 24 for account in sent)
    within = [dict(account.bytes_to) for _, account in accounts]
    assert within == [{}, {3: 8}, {}, {1: 8}]  # ranks of the world, not numbers within the group


def library_code() -> tuple[TrafficAccount, TrafficAccount, int]:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(100, 100))
    with measure.traffic() as sent:
        model(torch.ones(2, 100)).sum().backward()
    group = dist.new_group([0, 1])
    with measure.traffic() as within:
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(1000), group=group)
    return sent, within, sum(4 * p.numel() for p in model.parameters())


def test_calls_from_cplusplus_and_in_subgroups_are_seen():
    for rank, (sent, within, n) in enumerate(ranks.run(library_code, world_size=3)):
        assert sent.modelled_bytes["all_reduce"] == round(2 * n * 2 / 3)
        assert within.total_bytes == (4000 if rank < 2 else 0)


def uneven_and_raising() -> tuple[TrafficAccount, TrafficAccount]:
    """Rank r keeps one element and sends r + 2 to the other; then the block of a record raises."""
    to, of = ([1, 2], [1, 3]) if dist.get_rank() == 0 else ([3, 1], [2, 1])
    with measure.traffic() as sent:
        dist.all_to_all_single(torch.empty(sum(of)), torch.ones(sum(to)), of, to)
    with pytest.raises(RuntimeError, match="by design"), measure.traffic() as raised:
        dist.all_reduce(torch.ones(N))
        raise RuntimeError("by design")
    return sent, raised


def test_an_uneven_all_to_all_counts_what_leaves_and_a_record_is_complete_when_the_block_raises():
    (sent, raised), (other, _) = ranks.run(uneven_and_raising, world_size=2)
    assert (sent.total_bytes, other.total_bytes) == (8, 12)
    assert raised.total_bytes == 4 * N and (raised.observed_bytes or not ON_LINUX)
