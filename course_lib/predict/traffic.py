"""The cost of a communication operation: bytes and messages of one rank, by algorithm, and seconds over a given link.

There is one function for each operation, named as in `collectives.algorithms`, and all return a `Collective`:

    predict.all_reduce(n_bytes, 8, "tree", rank=3).messages
    predict.broadcast(n_bytes, 8).seconds(link)

`n_bytes` is the size of the *whole* array: of each rank before an all-reduce, a reduce-scatter or an all-to-all, of all
ranks together before an all-gather. Counted are the bytes that this rank *sends* (payload, without headers); all ranks
together receive just as much. Where p does not divide the array, chunks differ by an element, and a formula gives the
mean over the ranks, rounded to a byte. Each refuses negative bytes, no ranks, and a rank that does not exist.

Every rank has one `Link`, over which it sends and receives at once; adding up is free. So time is a `CriticalPath`: the
messages and bytes that must pass one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from course_kit.units import Bytes, Count, Ratio, Seconds
from course_lib.predict.setup import not_negative

ALL_REDUCE_ALGORITHMS = ("ring", "direct", "manager", "tree", "recursive_doubling", "halving_doubling")


class CriticalPath(NamedTuple):
    """The messages and bytes that have to pass one after the other before a collective is finished."""

    messages: Count
    n_bytes: Bytes


@dataclass(frozen=True)
class Link:
    """A connection in the α–β model (Hockney 1994; Thakur, Rabenseifner and Gropp 2005, §3).

    Attributes:
        alpha: the price of a message, whatever its size (latency).
        seconds_per_byte: β, the price of each of its bytes; its inverse is the bandwidth.

    Raises:
        ValueError: a price is negative.
    """

    alpha: Seconds
    seconds_per_byte: float

    def __post_init__(self) -> None:
        not_negative(alpha=self.alpha, seconds_per_byte=self.seconds_per_byte)

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth, 1/β; infinite if bytes cost nothing."""
        return 1 / self.seconds_per_byte if self.seconds_per_byte else math.inf

    @property
    def balance(self) -> Bytes:
        """α/β: a message of this size pays as much for being a message as for its bytes.

        Raises:
            ValueError: bytes cost nothing on this link, so no message is long enough.
        """
        if not self.seconds_per_byte:
            raise ValueError("this link has β = 0, so there is no size at which bytes cost as much as the message")
        return Bytes(round(self.alpha / self.seconds_per_byte))

    def seconds(self, path: tuple[int, int]) -> Seconds:
        """messages · α + bytes · β, for (messages, bytes).

        Raises:
            ValueError: a negative number of either.
        """
        messages, n_bytes = path
        not_negative(messages=messages, n_bytes=n_bytes)
        return Seconds(messages * float(self.alpha) + n_bytes * self.seconds_per_byte)


def fit_link(samples: Iterable[tuple[int, int, float]]) -> Link:
    """The link that explains measured times best: least squares of the *relative* error.

    A microsecond means much for a small message and nothing for a large one. Where noise would make α or β negative,
    that one is 0.

    Args:
        samples: (messages, bytes, seconds) of each measurement, from a `Collective`'s path or counted.

    Raises:
        ValueError: a time is not positive, or the samples cannot tell messages from bytes (all of one size, or one).
    """
    rows = [(messages / s, n_bytes / s) if s > 0 else None for messages, n_bytes, s in samples]
    if None in rows:
        raise ValueError("fit_link needs times above 0 s; leave out what the clock could not resolve")
    pairs = [row for row in rows if row]
    mm, mb, bb = (sum(row[i] * row[j] for row in pairs) for i, j in ((0, 0), (0, 1), (1, 1)))  # the normal equations
    m, b = (sum(row[i] for row in pairs) for i in (0, 1))
    determinant = mm * bb - mb * mb
    if determinant <= 1e-12 * mm * bb:  # all messages as long as each other, but for rounding
        raise ValueError(f"fit_link got {len(pairs)} samples of one size a message; measure at least two sizes")
    alpha, beta = (m * bb - b * mb) / determinant, (mm * b - mb * m) / determinant
    if alpha < 0:
        alpha, beta = 0.0, b / bb  # the best line through 0 with bytes alone
    elif beta < 0:
        alpha, beta = m / mm, 0.0  # … with messages alone
    return Link(Seconds(alpha), beta)


@dataclass(frozen=True)
class Collective:
    """One operation, as one rank pays for it and as all wait for it."""

    bytes: Bytes  # that this rank sends
    messages: Count
    path: CriticalPath  # until the operation is finished everywhere

    def seconds(self, link: Link) -> Seconds:
        """The duration: the path at the link's prices."""
        return link.seconds(self.path)


def all_reduce(n_bytes: int, world_size: int, algorithm: str = "ring", rank: int = 0) -> Collective:
    """Every rank gets the sum of all arrays. Messages that `rank` sends of `n_bytes` = n, and the path if that differs:

    - "ring": 2(p-1) messages of n/p, the fewest bytes possible (Patarasuk and Yuan 2009).
    - "halving_doubling" (Rabenseifner's): as many bytes, in 2 log2 p messages.
    - "recursive_doubling": log2 p messages of n.
    - "direct": p-1 messages of n. (A rank that can post all at once pays α once.)
    - "manager": rank 0 collects and answers: p-1 messages of n for rank 0, one for the others. Path: 2(p-1).
    - "tree": a binomial tree up to rank 0 and down again: n for each edge that the rank sends along. Path: ceil(log2 p)
      rounds up and as many down.

    Source: Thakur, Rabenseifner and Gropp 2005, §4, without their term for the additions. NCCL's "bus bandwidth" uses
    the same 2(p-1)/p.

    Raises:
        ValueError: unknown algorithm, no such rank, negative bytes, or p is not a power of two where the algorithm
            needs one.
    """
    _check(n_bytes, world_size, rank)
    if algorithm not in ALL_REDUCE_ALGORITHMS:
        raise ValueError(f"algorithm={algorithm!r}: it must be one of {', '.join(ALL_REDUCE_ALGORITHMS)}")
    others = world_size - 1
    rounds = others.bit_length()  # ceil(log2 p)
    if algorithm.endswith("_doubling") and world_size != 1 << rounds:
        raise ValueError(f"{algorithm} pairs ranks off, so world_size must be a power of two; {world_size} is not")
    if algorithm in ("ring", "halving_doubling"):
        return _in_parts(2 * n_bytes, world_size, 2 * (others if algorithm == "ring" else rounds))
    messages, path = {
        "recursive_doubling": (rounds, rounds),
        "direct": (others, others),
        "manager": (1 if rank else others, 2 * others),  # rank 0 answers each rank, one after the other
        "tree": (tree_children(world_size, rank) + (1 if rank else 0), 2 * rounds),
    }[algorithm]
    return _whole(n_bytes, messages, path)


def reduce_scatter(n_bytes: int, world_size: int) -> Collective:
    """Each rank gets the sum of its part of `n_bytes` on every rank: p-1 messages of n/p, by ring or directly."""
    _check(n_bytes, world_size)
    return _in_parts(n_bytes, world_size, world_size - 1)


def all_gather(n_bytes: int, world_size: int) -> Collective:
    """All ranks' parts go to every rank, which ends with `n_bytes`: p-1 messages of n/p."""
    return reduce_scatter(n_bytes, world_size)


def all_to_all(n_bytes: int, world_size: int) -> Collective:
    """Each rank deals out its `n_bytes` and keeps its own share: p-1 messages of n/p.

    (`collectives.schedules.all_to_all` needs a round more: each rank has one in which it is its own partner.)
    """
    return reduce_scatter(n_bytes, world_size)


def broadcast(n_bytes: int, world_size: int, rank: int = 0) -> Collective:
    """Rank 0 gives `n_bytes` to all, along a binomial tree: n to each child of `rank`. Path: ceil(log2 p) rounds."""
    _check(n_bytes, world_size, rank)
    return _whole(n_bytes, tree_children(world_size, rank), (world_size - 1).bit_length())


def reduce(n_bytes: int, world_size: int, rank: int = 0) -> Collective:
    """Rank 0 gets the sum of all arrays, up a binomial tree: n from every other rank. Path: ceil(log2 p) rounds."""
    _check(n_bytes, world_size, rank)
    return _whole(n_bytes, 1 if rank else 0, (world_size - 1).bit_length())


OPERATIONS: dict[str, Callable[..., Collective]] = {
    each.__name__: each for each in (all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce)
}
"""Operation → its function, each called with `n_bytes` and `world_size`."""


def crossover_bytes(world_size: int, link: Link, fewer_messages: str = "tree", fewer_bytes: str = "ring") -> Bytes:
    """The size at which two algorithms of an all-reduce take the same time; below it the one with fewer messages wins.

    Raises:
        ValueError: one of the two needs no more messages and no more bytes than the other, so it always wins; or as
            `all_reduce`.
    """
    unit = 2**40  # a size at which rounding to whole bytes does not matter
    first, second = (all_reduce(unit, world_size, name).path for name in (fewer_messages, fewer_bytes))
    messages, per_byte = second.messages - first.messages, (first.n_bytes - second.n_bytes) / unit
    if messages <= 0 or per_byte <= 0:
        raise ValueError(
            f"with {world_size} ranks, {fewer_messages} and {fewer_bytes} do not change places: name first the one "
            f"with fewer messages, then the one with fewer bytes"
        )
    return Bytes(round(messages * link.balance / per_byte))  # saved messages pay for so many bytes more


def bus_factor(operation: str, world_size: int) -> Ratio:
    """Bus bandwidth over algorithm bandwidth (bytes of the whole array / time), as NCCL's tests print both.

    The factor is the share of the array that must leave each rank (of a broadcast, the root), so bus bandwidth can be
    held against the speed of a link, whatever the operation, one of `OPERATIONS`, and the number of ranks. A switch
    that adds can exceed it. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"operation={operation!r}: it must be one of {', '.join(OPERATIONS)}")
    _check(0, world_size)
    if operation in ("broadcast", "reduce"):
        return Ratio(1)
    return Ratio((2 if operation == "all_reduce" else 1) * (world_size - 1) / world_size)


def _in_parts(n_bytes: int, world_size: int, messages: int) -> Collective:
    """(p-1)/p of the bytes; the path is the same."""
    sent = Bytes(round(n_bytes * (world_size - 1) / world_size))
    return Collective(sent, Count(messages), CriticalPath(Count(messages), sent))


def _whole(n_bytes: int, messages: int, path: int) -> Collective:
    """The whole array in each message."""
    return Collective(Bytes(messages * n_bytes), Count(messages), CriticalPath(Count(path), Bytes(path * n_bytes)))


def tree_children(world_size: int, rank: int) -> int:
    """The number of children of `rank` in the binomial tree rooted at rank 0.

    Rank r hands on to r + 1, r + 2, r + 4, … while the step is smaller than r's lowest set bit and the rank exists.
    """
    lowest_bit = rank & -rank or world_size  # rank 0 has no bit set, and all steps
    return sum(1 for k in range(world_size.bit_length()) if 2**k < lowest_bit and rank + 2**k < world_size)


def _check(n_bytes: int, world_size: int, rank: int = 0) -> None:
    not_negative(n_bytes=n_bytes)
    if world_size < 1:
        raise ValueError(f"world_size={world_size}: there must be at least one rank")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} does not exist among {world_size} ranks, which count from 0")


class TwoLevels(NamedTuple):
    """A hierarchical all-reduce, as one rank pays for it: a flat ring runs at the pace of its slowest link.

    Attributes:
        inside: a reduce-scatter, and at the end an all-gather, among the G ranks of a node.
        across: an all-reduce of each rank's G-th of the sum, over its own card, with other nodes.
    """

    inside: Collective
    across: Collective


def two_level_all_reduce(n_bytes: int, nodes: int, ranks_per_node: int) -> TwoLevels:
    """Every rank gets the sum of all arrays, inside the nodes first: 2(G-1)/G · n inside, 2(N-1)/N · n/G across.

    Args:
        n_bytes: of the array of each rank, n.
        nodes: N.
        ranks_per_node: G; each has a link of its own to the other nodes.

    Source: Austin et al. 2025, "How to Scale Your Model", GPUs, cross-node collectives (a ring at each level).
    """
    return TwoLevels(all_reduce(n_bytes, ranks_per_node), all_reduce(round(n_bytes / ranks_per_node), nodes))
