"""Zero-bubble schedules from one rule: forwards and backwards in their order, as soon as they can be; W in the gaps.

A schedule is then three things: where the stages are, each rank's order of F and B, and the most that a rank may hold.

    name            stages of rank r     forwards ahead   held at most        idle between its first and last action
    ZB-H1           r                    P - r            P                   P - 1 units on rank 0
    ZB-H2           r                    2(P - r) - 1     2P - 1              none
    ZB-V            r and 2P - 1 - r     as drawn below   2P halves           none

Qi et al. 2023, §2 and (first version on arXiv) §6. `orders.zero_bubble` writes ZB-H1 down without playing it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from course_lib.model.refusals import check_sizes
from course_lib.pipeline.schedule.actions import Action, Message, Schedule


def zb_h2(stages: int, micro_batches: int) -> Schedule:
    """ZB-H1 with nearly twice the forwards ahead: a rank is busy until the first gradient comes, and from then on.

    No rank waits between its first and its last action when F, B and W take equally long and M is at least 2P - 1. Rank
    r still begins and ends r units after rank 0. So the step gains nothing if all ranks wait for each other at its end,
    and the whole bubble if each begins the next one by itself. Each rank holds 2P - 1 micro-batches where 1F1B holds
    P - r. Qi et al. 2023, §2.2 and table 2.
    """
    check_sizes(stages=stages, micro_batches=micro_batches)

    def order(stage: int) -> list[Action]:
        forwards, backwards = (_all(kind, stage, micro_batches) for kind in "FB")
        ahead = 2 * (stages - stage) - 1  # P - r for F to reach the last stage, P - r - 1 for B to come back
        return forwards[:ahead] + in_turn(backwards, forwards[ahead:])

    orders = [order(stage) for stage in range(stages)]
    return fill_gaps("zb-h2", range(stages), orders, micro_batches, most=2 * stages - 1)


def zb_v(ranks: int, micro_batches: int) -> Schedule:
    """Two half stages a rank, placed down and up again: rank r has stages r and 2P - 1 - r, rank 0 the first and the
    last. So a micro-batch's backward pass begins where its forward pass did, and memory is free again early: no rank
    waits between its first and its last action, as in ZB-H2, and each holds P micro-batches (2P halves), as rank 0 does
    in 1F1B. A micro-batch crosses to another rank twice as often. Qi et al. 2023, first version, §6; V-ZB of Qi et al.
    2024.
    """
    check_sizes(ranks=ranks, micro_batches=micro_batches)

    def order(rank: int) -> list[Action]:
        down, up = rank, 2 * ranks - 1 - rank
        f_down, b_down, f_up, b_up = (_all(kind, stage, micro_batches) for stage in (down, up) for kind in "FB")
        ahead = 2 * (ranks - rank) - 1  # until the first micro-batch is back from the V's turn
        return [
            *f_down[:ahead],
            *in_turn(f_up[:rank], f_down[ahead : ahead + rank]),  # until its gradient is back from rank 0
            *in_turn(f_up[rank:ranks], b_up[: ranks - rank]),  # until its gradient is back from the V's turn
            *in_turn(f_down[ahead + rank :], b_down, f_up[ranks:], b_up[ranks - rank :]),
        ]

    owner = [*range(ranks), *reversed(range(ranks))]
    return fill_gaps("zb-v", owner, [order(rank) for rank in range(ranks)], micro_batches, most=2 * ranks)


def fill_gaps(
    name: str, owner: Iterable[int], orders: Sequence[Sequence[Action]], micro_batches: int, most: int
) -> Schedule:
    """Play F and B in each rank's order, all actions equally long, and put a W wherever the next one cannot begin: its
    message is not there yet, or the next one is an F and the rank already holds `most` (stage, micro-batch) pairs.

    Raises:
        ValueError: the ranks come to a point where none can go on.
    """
    plan = Schedule(name, tuple(map(tuple, orders)), tuple(owner), micro_batches)
    left, weights = [deque(order) for order in orders], [deque[Action]() for _ in orders]
    rows: list[list[Action]] = [[] for _ in orders]
    held, there = [0] * plan.ranks, {None}  # None: what the first F waits for
    while any(left) or any(weights):
        made: set[Message | None] = set()  # there when all ranks have done one more action
        for rank, row in enumerate(rows):
            action = left[rank][0] if left[rank] else None
            if action and plan.consumes(action) in there and (action.kind == "B" or held[rank] < most):
                left[rank].popleft()
            elif weights[rank]:
                action = weights[rank].popleft()
            else:
                continue
            row.append(action)
            made.add(plan.produces(action))
            held[rank] += {"F": 1, "B": 0, "W": -1}[action.kind]
            if action.kind == "B":
                weights[rank].append(action._replace(kind="W"))
        if not made:
            raise ValueError(f"{name}: no rank can go on after {sum(map(len, rows))} actions, with {most} held at most")
        there |= made
    return Schedule(name, tuple(map(tuple, rows)), plan.owner, micro_batches)


def in_turn(*streams: Sequence[Action]) -> list[Action]:
    """One action of each stream in turn; a stream that is used up is left out."""
    return [action for each in zip_longest(*streams) for action in each if action is not None]


def _all(kind: str, stage: int, micro_batches: int) -> list[Action]:
    return [Action(kind, stage, number) for number in range(micro_batches)]  # type: ignore[arg-type]
