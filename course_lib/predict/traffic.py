"""How many bytes and messages one rank sends in a collective, by algorithm.

Two conventions, the same everywhere in this course:

- `n_bytes` is the size of the *whole* array: what each rank holds before an all-reduce or an all-to-all, what all ranks
  together hold before an all-gather, what each holds before a reduce-scatter.
- What counts is what this rank *sends* (payload, without headers). All ranks together receive just as much.

So an all-reduce by a ring costs 2(p-1)/p · n_bytes: n_bytes for 2 ranks, nearly 2 · n_bytes for many. Where p does not
divide the array, chunks differ by an element and a formula gives the mean over the ranks, rounded to a byte.

Lesson 00 uses this module; lesson 06 takes it apart.
"""

from __future__ import annotations

from course_lib.units import Bytes, Count

ALL_REDUCE_ALGORITHMS = ("ring", "direct", "manager", "tree", "recursive_doubling", "halving_doubling")


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
