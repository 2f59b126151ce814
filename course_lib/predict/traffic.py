"""What a communication operation costs: bytes and messages of one rank, by algorithm, and seconds over a given link.

There is one function for each operation, named as in `ranks.collectives`, and all return a `Collective`:

    predict.all_reduce(n_bytes, world_size=8).bytes
    predict.all_reduce(n_bytes, 8, "tree", rank=3).messages
    predict.broadcast(n_bytes, 8).seconds(link)

Two conventions, the same everywhere in this course:

- `n_bytes` is the size of the *whole* array: what each rank holds before an all-reduce or an all-to-all, what all ranks
  together hold before an all-gather, what each holds before a reduce-scatter.
- What counts is what this rank *sends* (payload, without headers). All ranks together receive just as much.

So an all-reduce by a ring costs 2(p-1)/p · n_bytes: n_bytes for 2 ranks, nearly 2 · n_bytes for many. Where p does not
divide the array, chunks differ by an element and a formula gives the mean over the ranks, rounded to a byte.

Lesson 00 uses this module; lesson 06 takes it apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from course_kit.units import Bytes, Count, Ratio, Seconds
from course_lib.predict.link import Link, Path
from course_lib.predict.setup import not_negative

ALL_REDUCE_ALGORITHMS = ("ring", "direct", "manager", "tree", "recursive_doubling", "halving_doubling")


@dataclass(frozen=True)
class Collective:
    """One operation, as one rank pays for it and as all wait for it.

    Attributes:
        bytes: what this rank sends.
        messages: in how many messages.
        path: what has to pass one after the other before the operation is finished everywhere.
    """

    bytes: Bytes
    messages: Count
    path: Path

    def seconds(self, link: Link) -> Seconds:
        """How long it takes: the path at the link's prices."""
        return link.seconds(self.path)


def all_reduce(n_bytes: int, world_size: int, algorithm: str = "ring", rank: int = 0) -> Collective:
    """Every rank gets the sum of all arrays. What `rank` sends of `n_bytes` = n, and the path:

    - "ring": 2(p-1) messages of n/p, the fewest bytes possible (Patarasuk and Yuan 2009). The path is the same.
    - "halving_doubling" (Rabenseifner's): as many bytes, in 2 log2 p messages. The path is the same.
    - "recursive_doubling": log2 p messages of n. The path is the same.
    - "direct": every rank sends its whole array to every other one, (p-1) messages of n. The path is the same. (The
      least possible; who can post all messages at once pays α once.)
    - "manager": rank 0 collects and answers: p-1 messages of n for rank 0, one for the others. Path: 2(p-1), since rank
      0 first receives everything, then sends everything.
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
    if algorithm == "ring":
        return _in_parts(2 * n_bytes, world_size, 2 * others)
    if algorithm == "halving_doubling":
        return _in_parts(2 * n_bytes, world_size, 2 * _log2(world_size, algorithm))
    if algorithm == "recursive_doubling":
        rounds = _log2(world_size, algorithm)
        return _whole(n_bytes, rounds, rounds)
    if algorithm == "direct":
        return _whole(n_bytes, others, others)
    if algorithm == "manager":
        return _whole(n_bytes, 1 if rank else others, 2 * others)
    return _whole(n_bytes, tree_children(world_size, rank) + (1 if rank else 0), 2 * others.bit_length())


def reduce_scatter(n_bytes: int, world_size: int) -> Collective:
    """Each rank gets the sum of its part of `n_bytes` on every rank: p-1 messages of n/p, by ring or directly.

    Raises:
        ValueError: no ranks, or negative bytes.
    """
    _check(n_bytes, world_size)
    return _in_parts(n_bytes, world_size, world_size - 1)


def all_gather(n_bytes: int, world_size: int) -> Collective:
    """All ranks' parts go to every rank, which ends with `n_bytes`: p-1 messages of n/p. Errors: `reduce_scatter`."""
    return reduce_scatter(n_bytes, world_size)


def all_to_all(n_bytes: int, world_size: int) -> Collective:
    """Each rank deals out its `n_bytes` and keeps its own share: p-1 messages of n/p. Errors: `reduce_scatter`.

    (`ranks.schedules.all_to_all` needs a round more: each rank has one in which it is its own partner.)
    """
    return reduce_scatter(n_bytes, world_size)


def broadcast(n_bytes: int, world_size: int, rank: int = 0) -> Collective:
    """Rank 0 gives `n_bytes` to all, along a binomial tree: n to each child of `rank`. Path: ceil(log2 p) rounds.

    Raises:
        ValueError: no such rank, or negative bytes.
    """
    _check(n_bytes, world_size, rank)
    return _whole(n_bytes, tree_children(world_size, rank), (world_size - 1).bit_length())


def reduce(n_bytes: int, world_size: int, rank: int = 0) -> Collective:
    """Rank 0 gets the sum of all arrays, up a binomial tree: n from every other rank. Path: ceil(log2 p) rounds.

    Raises:
        ValueError: no such rank, or negative bytes.
    """
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
    return Bytes(round(messages * link.balance / per_byte))


def bus_factor(operation: str, world_size: int) -> Ratio:
    """Bus bandwidth over algorithm bandwidth (bytes of the whole array / time), as NCCL's tests print both.

    It is the share of the array that must leave each rank, so bus bandwidth can be held against the speed of a link,
    whatever the operation and the number of ranks. (All that a broadcast sends must pass through one rank's link once,
    so there it is 1.) That presumes that only ranks add; a switch that adds can exceed it.

    Args:
        operation: a name in `OPERATIONS`.
        world_size: number of ranks.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.

    Raises:
        ValueError: no such operation, or no ranks.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"operation={operation!r}: it must be one of {', '.join(OPERATIONS)}")
    _check(0, world_size)
    if operation in ("broadcast", "reduce"):
        return Ratio(1)
    return Ratio((2 if operation == "all_reduce" else 1) * (world_size - 1) / world_size)


def _in_parts(n_bytes: int, world_size: int, messages: int) -> Collective:
    """(p-1)/p of the bytes; whoever waits for the operation waits for just these."""
    sent = Bytes(round(n_bytes * (world_size - 1) / world_size))
    return Collective(sent, Count(messages), Path(Count(messages), sent))


def _whole(n_bytes: int, messages: int, path: int) -> Collective:
    """The whole array in each message."""
    return Collective(
        Bytes(messages * n_bytes), Count(messages), Path(Count(path), Bytes(path * n_bytes))
    )  # fmt: skip


def tree_children(world_size: int, rank: int) -> int:
    """How many children `rank` has in the binomial tree rooted at rank 0.

    Rank r hands on to r + 1, r + 2, r + 4, … while the step is smaller than r's lowest set bit and the rank exists.
    """
    lowest_bit = rank & -rank or world_size
    return sum(1 for k in range(world_size.bit_length()) if 2**k < lowest_bit and rank + 2**k < world_size)


def _log2(world_size: int, algorithm: str) -> int:
    if world_size & (world_size - 1):
        raise ValueError(f"{algorithm} pairs ranks off, so world_size must be a power of two; {world_size} is not")
    return world_size.bit_length() - 1


def _check(n_bytes: int, world_size: int, rank: int = 0) -> None:
    not_negative(n_bytes=n_bytes)
    if world_size < 1:
        raise ValueError(f"world_size={world_size}: there must be at least one rank")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} does not exist among {world_size} ranks, which count from 0")
