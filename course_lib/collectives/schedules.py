"""The collectives of this course as plain data: each rank's sends and receives, round by round.

A schedule is a list of rounds for one rank. In a round the rank posts all its sends and receives at once and waits
until all are done; a round may be empty. Both ends of a message have it in the *same* round. So no schedule here can
deadlock: when every rank has come to round k, every send of round k has its receive.

`hold` plays the schedules of all ranks on paper, for drawings and tests; `algorithms.execute` runs them.
Ranks and roots are counted within the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

Contributions = list[list[Counter[int]]]
"""contributions[rank][part][source]: how often the summand of rank `source` is in that rank's copy of the part."""


@dataclass(frozen=True)
class Send:
    """One message: a part of the sender's tensor goes to rank `to`."""

    to: int
    part: int = 0


@dataclass(frozen=True)
class Receive:
    """The other end of a `Send` by rank `source`. `add`: add the part to the one in place, else replace it."""

    source: int
    part: int = 0
    add: bool = False


@dataclass(frozen=True)
class Round:
    """One rank's sends and receives at one time. No part is overwritten in the round that sends it."""

    sends: tuple[Send, ...] = ()
    receives: tuple[Receive, ...] = ()


Schedule = list[Round]


def broadcast(world_size: int, rank: int, root: int = 0) -> Schedule:
    """A binomial tree: the number of ranks that have the tensor doubles in each of ceil(log2 p) rounds. One part.

    Counted from the root, rank r sends to r + step in the round of `step` = …, 4, 2, 1 if 2 · step divides r.
    """
    position = (rank - root) % world_size  # counted from the root
    rounds = []
    for exponent in reversed(range((world_size - 1).bit_length())):  # ceil(log2 p) exponents
        step = 2**exponent
        sends = position % (2 * step) == 0 and position + step < world_size  # has the tensor, and its child exists
        receives = position % (2 * step) == step
        rounds.append(
            Round(
                (Send((rank + step) % world_size),) if sends else (),
                (Receive((rank - step) % world_size),) if receives else (),
            )
        )
    return rounds


def reduce(world_size: int, rank: int, root: int = 0) -> Schedule:
    """The broadcast's tree from the leaves to the root: each of its sends becomes a receive that adds. One part."""
    return [
        Round(
            tuple(Send(receive.source) for receive in each.receives),
            tuple(Receive(send.to, add=True) for send in each.sends),
        )
        for each in reversed(broadcast(world_size, rank, root))  # the broadcast's rounds, last one first
    ]


def reduce_scatter(world_size: int, rank: int) -> Schedule:
    """A ring: partial sums travel to the right, a part each round, until part r is complete on rank r. p parts.

    Source: Patarasuk and Yuan 2009, §3.
    """
    left, right = _neighbours(world_size, rank)
    return [
        Round(
            (Send(right, (rank - 1 - step) % world_size),),  # what came in the round before
            (Receive(left, (rank - 2 - step) % world_size, add=True),),
        )
        for step in range(world_size - 1)
    ]


def all_gather(world_size: int, rank: int) -> Schedule:
    """A ring: rank r begins with part r, and sends to the right the part that came last from the left. p parts."""
    left, right = _neighbours(world_size, rank)
    return [
        Round((Send(right, (rank - step) % world_size),), (Receive(left, (rank - step - 1) % world_size),))
        for step in range(world_size - 1)
    ]


def all_to_all(world_size: int, rank: int) -> Schedule:
    """Pairwise swaps: in round k, ranks a and b with a + b = k (mod p) swap a's part b for b's part a. p parts.

    Each pair meets once. A rank that is its own partner has an empty round.
    """
    rounds = []
    for number in range(world_size if world_size > 1 else 0):  # else a rank alone would have an empty round
        partner = (number - rank) % world_size  # the same sum from both sides
        rounds.append(Round() if partner == rank else Round((Send(partner, partner),), (Receive(partner, partner),)))
    return rounds


def all_reduce_direct(world_size: int, rank: int) -> Schedule:
    """Every rank sends its tensor to every other one, in one round. One part."""
    others = [other for other in range(world_size) if other != rank]
    everything = Round(tuple(map(Send, others)), tuple(Receive(other, add=True) for other in others))
    return [everything] if others else []


def all_reduce_manager(world_size: int, rank: int) -> Schedule:
    """Rank 0 collects all tensors, adds them up and sends the sum to all: two rounds. One part."""
    workers = range(1, world_size)
    if not workers:
        return []
    if rank == 0:
        return [Round(receives=tuple(Receive(r, add=True) for r in workers)), Round(sends=tuple(map(Send, workers)))]
    return [Round(sends=(Send(0),)), Round(receives=(Receive(0),))]


def all_reduce_ring(world_size: int, rank: int) -> Schedule:
    """Reduce-scatter, then all-gather: 2(p-1) rounds with a part each. p parts."""
    return reduce_scatter(world_size, rank) + all_gather(world_size, rank)


def all_reduce_tree(world_size: int, rank: int) -> Schedule:
    """Up the binomial tree to rank 0 and down again: 2 ceil(log2 p) rounds. One part."""
    return reduce(world_size, rank) + broadcast(world_size, rank)


def all_reduce_double_tree(world_size: int, rank: int) -> Schedule:
    """Two trees at once, each for half of the tensor: up to the root and down again. 2 parts.

    In each tree every rank has at most two children, and odd places are leaves. In the second tree the ranks sit one
    place further, so an inner node of one tree is a leaf of the other: no rank sends more than twice the tensor, in
    at most 4 messages. Rounds: 2 ceil(log2 p).

    Source: Sanders, Speck and Träff 2009; NCCL's trees are of this kind.
    """
    depth = (world_size - 1).bit_length()
    rounds = [Round() for _ in range(2 * depth)]
    for part in (0, 1) if world_size > 1 else ():
        for child in range(1, world_size):
            parent, level = _parent(world_size, child), _level(world_size, child)
            lower, upper = (child + part) % world_size, (parent + part) % world_size
            up, down = rounds[depth - level], rounds[depth + level - 1]  # deepest first up, and last down
            if rank == lower:
                rounds[depth - level] = Round((*up.sends, Send(upper, part)), up.receives)
                rounds[depth + level - 1] = Round(down.sends, (*down.receives, Receive(upper, part)))
            elif rank == upper:
                rounds[depth - level] = Round(up.sends, (*up.receives, Receive(lower, part, add=True)))
                rounds[depth + level - 1] = Round((*down.sends, Send(lower, part)), down.receives)
    return rounds


def _parent(world_size: int, place: int) -> int:
    """The parent of a place other than 0. Root 0 has one child, every place under it at most two."""
    bit = place & -place  # the lowest bit that is set: 1 in a leaf, larger further up
    above = (place ^ bit) | (bit << 1)
    return above if above < world_size else place ^ bit


def _level(world_size: int, place: int) -> int:
    """The number of edges between a place and the root."""
    return 1 + _level(world_size, _parent(world_size, place)) if place else 0


ALL_REDUCE: dict[str, Callable[[int, int], Schedule]] = {
    "direct": all_reduce_direct,
    "manager": all_reduce_manager,
    "ring": all_reduce_ring,
    "tree": all_reduce_tree,
}
"""Name of the algorithm → its schedule."""
WHOLE = ("direct", "manager", "tree")
"""The algorithms that send the tensor in one piece; the others cut it into p parts."""


def hold(schedules: list[Schedule], start: Contributions) -> list[Contributions]:
    """List the contributions that each rank holds before the first round and after each, if rank r has `schedules[r]`.

    For an all-reduce, `start` has a `Counter({rank: 1})` for each part.

    Raises:
        ValueError: schedules differ in length; or a send or a receive has no other end in its round, where real ranks
            would hang.
    """
    if len({len(schedule) for schedule in schedules}) > 1:
        raise ValueError(f"the ranks have {[len(s) for s in schedules]} rounds; give all of them the same number")
    frames = [start]
    for number, rounds in enumerate(zip(*schedules)):
        before, after = frames[-1], [[Counter(part) for part in parts] for parts in frames[-1]]
        for source, send, rank, receive in messages(number, rounds):
            arrived = before[source][send.part]  # not `after`: a round's sends leave before it changes
            kept = after[rank][receive.part] if receive.add else Counter()
            after[rank][receive.part] = kept + arrived
        frames.append(after)
    return frames


def messages(number: int, rounds: tuple[Round, ...]) -> list[tuple[int, Send, int, Receive]]:
    """Match the sends and receives of round `number`: (source, send, rank, receive), in order between any two ranks.

    Raises:
        ValueError: a send has no receive in this round, or a receive no send.
    """
    sent: dict[tuple[int, int], list[Send]] = {}
    for source, each in enumerate(rounds):
        for send in each.sends:
            sent.setdefault((source, send.to), []).append(send)
    matched = []  # first receive with first send, for each pair of ranks, as the backend pairs them
    for rank, each in enumerate(rounds):
        for receive in each.receives:
            waiting = sent.get((receive.source, rank))
            if not waiting:
                raise ValueError(
                    f"round {number}: rank {rank} waits for a part from rank {receive.source}, which sends nothing; "
                    "put the matching Send into this round"
                )
            matched.append((receive.source, waiting.pop(0), rank, receive))
    for (source, rank), waiting in sent.items():
        if waiting:
            raise ValueError(
                f"round {number}: rank {source} sends to rank {rank}, which does not receive it; "
                f"put the matching Receive into this round"
            )
    return matched


def _neighbours(world_size: int, rank: int) -> tuple[int, int]:
    return (rank - 1) % world_size, (rank + 1) % world_size
