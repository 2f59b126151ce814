"""How many bytes and messages one rank sends in a collective, by algorithm, and how long that takes over a given link.

Two conventions, the same everywhere in this course:

- `n_bytes` is the size of the *whole* array: what each rank holds before an all-reduce or an all-to-all, what all ranks
  together hold before an all-gather, what each holds before a reduce-scatter.
- What counts is what this rank *sends* (payload, without headers). All ranks together receive just as much.

So an all-reduce by a ring costs 2(p-1)/p · n_bytes: n_bytes for 2 ranks, nearly 2 · n_bytes for many. Where p does not
divide the array, chunks differ by an element and a formula gives the mean over the ranks, rounded to a byte.

Time follows the α–β model (Hockney 1994; Thakur, Rabenseifner and Gropp 2005, §3): a message costs α seconds whatever
its size, and β seconds for each byte. Every rank has one link, over which it sends and receives at once; adding up is
free. So what counts is what must pass one after the other, `all_reduce_path`.

Lesson 00 uses this module; lesson 06 takes it apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.units import Bytes, Count, Ratio, Seconds

ALL_REDUCE_ALGORITHMS = ("ring", "direct", "manager", "tree", "recursive_doubling", "halving_doubling")


class Path(NamedTuple):
    """What has to pass one after the other before a collective is finished."""

    messages: Count
    n_bytes: Bytes


@dataclass(frozen=True)
class Link:
    """A connection in the α–β model.

    Attributes:
        alpha: what a message costs, whatever its size (latency).
        seconds_per_byte: β, what each of its bytes costs; its inverse is the bandwidth.
    """

    alpha: Seconds
    seconds_per_byte: float

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
        """messages · α + bytes · β, for (messages, bytes)."""
        messages, n_bytes = path
        return Seconds(messages * float(self.alpha) + n_bytes * self.seconds_per_byte)


def fit_link(samples: Iterable[tuple[int, int, float]]) -> Link:
    """The link that explains measured times best.

    Least squares of the *relative* error, because a microsecond means much for a small message and nothing for a large
    one. Neither α nor β comes out negative: if noise would make one so, it is 0.

    Args:
        samples: (messages, bytes, seconds) of each measurement, from `all_reduce_path` or counted.

    Raises:
        ValueError: a time is not positive, or the samples cannot tell messages from bytes (all of one size, or one).
    """
    rows = [(messages / s, n_bytes / s) if s > 0 else None for messages, n_bytes, s in samples]
    if None in rows:
        raise ValueError("fit_link needs times above 0 s; leave out what the clock could not resolve")
    pairs = [row for row in rows if row]
    mm, mb, bb = (sum(row[i] * row[j] for row in pairs) for i, j in ((0, 0), (0, 1), (1, 1)))
    m, b = (sum(row[i] for row in pairs) for i in (0, 1))
    determinant = mm * bb - mb * mb
    if determinant <= 1e-12 * mm * bb:
        raise ValueError(f"fit_link got {len(pairs)} samples of one size a message; measure at least two sizes")
    alpha, beta = (m * bb - b * mb) / determinant, (mm * b - mb * m) / determinant
    if alpha < 0:
        alpha, beta = 0.0, b / bb
    elif beta < 0:
        alpha, beta = m / mm, 0.0
    return Link(Seconds(alpha), beta)


def all_reduce_path(n_bytes: int, world_size: int, algorithm: str = "ring") -> Path:
    """Messages and bytes of an all-reduce that must pass one after the other.

    - "ring": 2(p-1) messages, 2(p-1)/p · n bytes.
    - "direct": p-1 and (p-1) · n. (The least possible; who can post all messages at once pays α once.)
    - "manager": twice that: rank 0 first receives everything, then sends everything.
    - "tree": ceil(log2 p) rounds up and as many down, each with the whole array.
    - "recursive_doubling": log2 p and log2 p · n. "halving_doubling": 2 log2 p and 2(p-1)/p · n.

    Source: Thakur, Rabenseifner and Gropp 2005, §4, without their term for the additions.

    Raises:
        ValueError: as `all_reduce_bytes`.
    """
    rounds = {
        "direct": world_size - 1,
        "manager": 2 * (world_size - 1),
        "tree": 2 * (world_size - 1).bit_length(),
    }
    sent = all_reduce_bytes(n_bytes, world_size, algorithm)  # checks the arguments
    if algorithm in rounds:
        return Path(Count(rounds[algorithm]), Bytes(rounds[algorithm] * n_bytes))
    return Path(all_reduce_messages(world_size, algorithm), sent)


def all_reduce_seconds(n_bytes: int, world_size: int, link: Link, algorithm: str = "ring") -> Seconds:
    """How long an all-reduce of `n_bytes` takes over `link`: `all_reduce_path` at its prices.

    Raises:
        ValueError: as `all_reduce_bytes`.
    """
    return link.seconds(all_reduce_path(n_bytes, world_size, algorithm))


def crossover_bytes(world_size: int, link: Link, fewer_messages: str = "tree", fewer_bytes: str = "ring") -> Bytes:
    """The size at which two algorithms take the same time; below it the one with fewer messages wins.

    Raises:
        ValueError: one of the two needs no more messages and no more bytes than the other, so it always wins; or as
            `all_reduce_bytes`.
    """
    unit = 2**40  # a size at which rounding to whole bytes does not matter
    first, second = (all_reduce_path(unit, world_size, name) for name in (fewer_messages, fewer_bytes))
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
    whatever the operation and the number of ranks. That presumes that only ranks add; a switch that adds can exceed it.

    Args:
        operation: "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast" or "reduce".
        world_size: number of ranks.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.

    Raises:
        ValueError: no such operation, or no ranks.
    """
    _check(world_size)
    share = (world_size - 1) / world_size
    factors = {"all_reduce": 2 * share, "broadcast": 1.0, "reduce": 1.0}
    factors |= dict.fromkeys(("reduce_scatter", "all_gather", "all_to_all"), share)
    if operation not in factors:
        raise ValueError(f"operation={operation!r}: it must be one of {', '.join(factors)}")
    return Ratio(factors[operation])


def all_reduce_bytes(n_bytes: int, world_size: int, algorithm: str = "ring", rank: int = 0) -> Bytes:
    """Bytes that `rank` sends in an all-reduce of `n_bytes`.

    - "ring" and "halving_doubling" (Rabenseifner's): 2(p-1)/p · n, the least possible (Patarasuk and Yuan 2009).
    - "direct": every rank sends its whole array to every other one: (p-1) · n.
    - "manager": rank 0 collects and answers: (p-1) · n for rank 0, n for the others.
    - "tree": a binomial tree up to rank 0 and down again: n for each edge that the rank sends along.
    - "recursive_doubling": n for each of log2(p) exchanges.

    Source: Thakur, Rabenseifner and Gropp 2005. NCCL's "bus bandwidth" uses the same 2(p-1)/p.

    Raises:
        ValueError: unknown algorithm, no such rank, or p is not a power of two where the algorithm needs one.
    """
    sends = _whole_sends(world_size, algorithm, rank)
    if sends is not None:
        return Bytes(n_bytes * sends)
    return Bytes(round(2 * n_bytes * (world_size - 1) / world_size))


def all_reduce_messages(world_size: int, algorithm: str = "ring", rank: int = 0) -> Count:
    """Messages that `rank` sends in an all-reduce; `all_reduce_bytes` lists the algorithms and errors."""
    sends = _whole_sends(world_size, algorithm, rank)
    if sends is not None:
        return Count(sends)
    rounds = world_size - 1 if algorithm == "ring" else _log2(world_size, algorithm)
    return Count(2 * rounds)


def reduce_scatter_bytes(n_bytes: int, world_size: int) -> Bytes:
    """Bytes that each rank sends in a reduce-scatter of `n_bytes` per rank: (p-1)/p · n, by ring or directly."""
    _check(world_size)
    return Bytes(round(n_bytes * (world_size - 1) / world_size))


def all_gather_bytes(n_bytes: int, world_size: int) -> Bytes:
    """Bytes that each rank sends in an all-gather that ends with `n_bytes` on every rank: (p-1)/p · n."""
    return reduce_scatter_bytes(n_bytes, world_size)


def all_to_all_bytes(n_bytes: int, world_size: int) -> Bytes:
    """Bytes that each rank sends in an all-to-all of `n_bytes` per rank: all but its own share, (p-1)/p · n."""
    return reduce_scatter_bytes(n_bytes, world_size)


def broadcast_bytes(n_bytes: int, world_size: int, rank: int = 0) -> Bytes:
    """Bytes that `rank` sends when rank 0 broadcasts `n_bytes` along a binomial tree: n for each of its children."""
    _check(world_size, rank)
    return Bytes(n_bytes * tree_children(world_size, rank))


def tree_children(world_size: int, rank: int) -> int:
    """How many children `rank` has in the binomial tree rooted at rank 0.

    Rank r hands on to r + 1, r + 2, r + 4, … while the step is smaller than r's lowest set bit and the rank exists.
    """
    lowest_bit = rank & -rank or world_size
    return sum(1 for k in range(world_size.bit_length()) if 2**k < lowest_bit and rank + 2**k < world_size)


def _whole_sends(world_size: int, algorithm: str, rank: int) -> int | None:
    """How often `rank` sends the whole array; None for the algorithms that send parts."""
    _check(world_size, rank)
    if algorithm not in ALL_REDUCE_ALGORITHMS:
        raise ValueError(f"algorithm={algorithm!r}: it must be one of {', '.join(ALL_REDUCE_ALGORITHMS)}")
    if algorithm == "direct" or (algorithm == "manager" and rank == 0):
        return world_size - 1
    if algorithm == "manager":
        return 1
    if algorithm == "tree":
        return tree_children(world_size, rank) + (1 if rank else 0)
    if algorithm == "ring":
        return None
    rounds = _log2(world_size, algorithm)
    return rounds if algorithm == "recursive_doubling" else None


def _log2(world_size: int, algorithm: str) -> int:
    if world_size & (world_size - 1):
        raise ValueError(f"{algorithm} pairs ranks off, so world_size must be a power of two; {world_size} is not")
    return world_size.bit_length() - 1


def _check(world_size: int, rank: int = 0) -> None:
    if world_size < 1:
        raise ValueError(f"world_size={world_size}: there must be at least one rank")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} does not exist among {world_size} ranks, which count from 0")
