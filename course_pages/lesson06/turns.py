"""Checks of lesson 06's turns, and the page's counts: bytes of the busiest rank, and of all ranks together."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_kit import measure, ranks
from course_kit.notebook.your_turn import Function
from course_kit.units import Bytes, Seconds
from course_lib import predict

N = 840_000
"""Bytes of the page's tensor: 2 to 8 divide them."""
EXERCISES = (
    64 * predict.all_reduce(3 * 10**9, world_size=64).bytes.to("GB"),
    predict.crossover_bytes(16, predict.Link(Seconds(20e-6), 1 / 10e9)).to("kB"),
)
"""Answers to exercises 1 and 2: GB that 64 ranks send together; kB up to which the tree of 16 is faster."""


def sent_by_each(all_reduce: Function, world_size: int, n_bytes: int) -> list[tuple[Bytes, dict[int, int]]]:
    """Bytes of each rank, and its messages to each other one.

    Raises:
        AssertionError: a rank does not end with the sum.
    """

    def on_each_rank() -> tuple[Tensor, Bytes, dict[int, int]]:
        tensor = torch.arange(n_bytes // 4) % 100 + float(dist.get_rank())
        with measure.traffic() as sent:
            all_reduce(tensor)
        return tensor, sent.total_bytes, dict(sent.messages_to)

    results = ranks.run(on_each_rank, world_size=world_size, timeout_s=10)
    right = torch.arange(n_bytes // 4) % 100 * world_size + sum(range(world_size))
    wrong = [rank for rank, (tensor, *_) in enumerate(results) if not torch.equal(tensor, right.float())]
    assert not wrong, f"all of {world_size} ranks should end with the sum, but ranks {wrong} do not"
    return [(sent_bytes, messages) for _, sent_bytes, messages in results]


def busiest_and_total(all_reduce: Function, world_size: int, n_bytes: int = N) -> dict[str, Bytes]:
    """Bytes of the rank that sends most, and of all ranks together; refuses as `sent_by_each` does."""
    sent = [sent_bytes for sent_bytes, _ in sent_by_each(all_reduce, world_size, n_bytes)]
    return {"busiest rank": max(sent), "all together": Bytes(sum(sent))}


def check_everyone(function: Function) -> None:
    """The sum, and one whole tensor from each rank to each other one, in messages of the ranks' own."""
    for p, n in ((2, 1200), (3, 1200), (4, 1200), (4, 4_000_000)):  # a large tensor shows a change during a send
        for rank, (sent_bytes, messages) in enumerate(sent_by_each(function, p, n)):
            others = dict.fromkeys((other for other in range(p) if other != rank), 1)
            assert (sent_bytes, messages) == (n * (p - 1), others), (
                f"each of {p} ranks should send its {n} bytes to each other one, but rank {rank} sends "
                f"{int(sent_bytes)} bytes in {sum(messages.values())} messages, to {sorted(messages)}"
            )


def check_gather(function: Function) -> None:
    """Each part on each rank, of equal lengths and of others, in the tensors that were given, each passed on once."""

    def on_each_rank(lengths: list[int]) -> tuple[list[list[float]], tuple[int, int, set[int]]]:
        me = dist.get_rank()
        parts = [torch.full((length,), float(part) if part == me else -1.0) for part, length in enumerate(lengths)]
        with measure.traffic() as sent:
            function(list(parts))
        return [part.tolist() for part in parts], (sent.total_messages, int(sent.total_bytes), set(sent.bytes_to))

    for lengths in ([2, 2, 2], [2, 3, 4, 5]):
        p = len(lengths)
        for rank, (parts, came) in enumerate(ranks.run(on_each_rank, lengths, world_size=p, timeout_s=10)):
            due, right = [[float(part)] * length for part, length in enumerate(lengths)], (rank + 1) % p
            assert parts == due, (
                f"rank {rank} of {p} should end with {due} in the tensors that it was given, but has {parts}"
            )
            n = 4 * (sum(lengths) - lengths[right])  # all parts but the one that its neighbour begins with
            assert came == (p - 1, n, {right}), (
                f"rank {rank} of {p} should send {p - 1} messages, {n} bytes, to its right neighbour only, "
                "but sends {} messages, {} bytes, to {}".format(*came)
            )


def check_down(function: Function) -> None:
    """Rank 0's tensor on all ranks: each edge once, no rank busier and no more rounds than such a tree needs."""

    def on_each_rank() -> tuple[list[float], int, list[int]]:
        tensor = torch.full((3,), 7.0 if dist.get_rank() == 0 else -1.0)
        with measure.traffic() as sent:
            function(tensor)
        return tensor.tolist(), sent.total_messages, list(sent.messages_to)

    for p in (3, 4, 9):
        found = ranks.run(on_each_rank, world_size=p, timeout_s=10)
        wrong = [rank for rank, (tensor, *_) in enumerate(found) if tensor != [7.0] * 3]
        assert not wrong, f"all of {p} ranks should end with rank 0's tensor, but ranks {wrong} do not"
        sent, rounds = [int(messages) for _, messages, _ in found], (p - 1).bit_length()
        assert sum(sent) == p - 1, (
            f"{p} ranks should send {p - 1} messages together, one to each rank but 0, not {sum(sent)}"
        )
        assert max(sent) <= rounds, (
            f"of {p} ranks none should send more than {rounds} messages, but one sends {max(sent)}"
        )
        last = _last_round([to for _, _, to in found])
        assert last <= rounds, f"{p} ranks should be done after {rounds} rounds, but the last one is after {last}"


def _last_round(to: list[list[int]], rank: int = 0, round_: int = 0) -> int:
    """The round after which all ranks below `rank` have its tensor, if each sends to to[rank], one in a round."""
    return max([round_, *(_last_round(to, child, later) for later, child in enumerate(to[rank], round_ + 1))])


def check_two_levels(function: Function) -> None:
    """The sum on all ranks of two nodes, and over the cable one tensor in each direction."""

    def on_each_rank(size: int) -> tuple[list[float], int]:
        me = dist.get_rank()
        nodes = [dist.new_group(list(range(first, first + size))) for first in (0, size)]
        leaders, tensor = dist.new_group([0, size]), torch.arange(4.0) + me
        with measure.traffic() as sent:
            function(tensor, nodes[me // size], leaders)
        return tensor.tolist(), sum(int(n) for to, n in sent.bytes_to.items() if to // size != me // size)

    for size in (2, 3):
        found = ranks.run(on_each_rank, size, world_size=2 * size, timeout_s=10)
        due = [sum(i + rank for rank in range(2 * size)) for i in range(4)]
        wrong = [rank for rank, (tensor, _) in enumerate(found) if tensor != due]
        assert not wrong, f"on two nodes of {size} all ranks should end with the sum, but ranks {wrong} do not"
        for node in (0, 1):
            across = sum(n for _, n in found[node * size : (node + 1) * size])
            assert across == 16, (
                f"with two nodes of {size}, a tensor of 16 bytes should leave node {node} once, but in calls of "
                f"`collectives` {across} bytes do"
            )
