"""Who sends which tokens to whose experts: decided from counts alone, then sent by two all-to-alls and back by two.

    plan = plan_dispatch(counts_PkE, capacity)      # every rank knows all counts, so all make the same plan
    plan.sends(rank), plan.receives(rank)           # rows to and from each rank
    rows = dispatch(rows, plan, group)              # the tokens go to their experts ...
    rows = combine(rows, plan, group)               # ... and what these say comes home, in the order it left

A dispatch moves rows and changes none, so its gradient is the way back: each of the two is what the other does in the
backward pass. That makes four all-to-alls in a step, all of the same bytes.

Suffixes: P ranks, k choices, E experts (of all ranks), L the experts of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor

from course_kit.units import Bytes
from course_lib.collectives.operators import Group, Operation, pair


class Exchange(NamedTuple):
    """One rank's part of a plan.

    Attributes:
        sends: rows to each rank, itself among them.
        receives: rows from each rank.
        order: puts what arrived, rank by rank, expert by expert; None where it already is so.
    """

    sends: list[int]
    receives: list[int]
    order: Int[Tensor, " rows"] | None


@dataclass(frozen=True, eq=False)
class DispatchPlan:
    """How many rows go from where to where. Plain numbers: it can be printed, drawn and tested without a process.

    Attributes:
        kept_PkE: how many of each rank's first, second … choices find a place at each expert. Rank r has the r-th
            P-th of the experts.
    """

    kept_PkE: Int[Tensor, "ranks choices experts"]

    @cached_property
    def rows_PPL(self) -> Int[Tensor, "sources owners own"]:
        """Rows from each rank to each rank's experts."""
        ranks = len(self.kept_PkE)
        return self.kept_PkE.sum(1).unflatten(-1, (ranks, -1))

    def sends(self, rank: int) -> list[int]:
        """Rows that a rank sends to each rank, itself among them."""
        return self.rows_PPL[rank].sum(-1).tolist()

    def receives(self, rank: int) -> list[int]:
        """Rows that a rank gets from each rank."""
        return self.rows_PPL[:, rank].sum(-1).tolist()

    def loads(self, rank: int) -> list[int]:
        """Rows that each of a rank's experts computes."""
        return self.rows_PPL[:, rank].sum(0).tolist()

    def exchange(self, rank: int) -> Exchange:
        """What a rank has to know of the plan."""
        rows_PL, order = self.rows_PPL[:, rank], None
        if 1 not in rows_PL.shape:
            expert_of_row = torch.arange(rows_PL.shape[1]).repeat(len(rows_PL)).repeat_interleave(rows_PL.flatten())
            order = expert_of_row.argsort(stable=True)
        return Exchange(self.sends(rank), self.receives(rank), order)

    def sent_bytes(self, rank: int, row_bytes: int) -> Bytes:
        """What a rank sends to others in a dispatch; in a combine it is what it received.

        Args:
            rank: of the group.
            row_bytes: of one token.
        """
        sends = self.sends(rank)
        return Bytes((sum(sends) - sends[rank]) * row_bytes)

    def returned_bytes(self, rank: int, row_bytes: int) -> Bytes:
        """What a rank sends to others in a combine."""
        receives = self.receives(rank)
        return Bytes((sum(receives) - receives[rank]) * row_bytes)


def plan_dispatch(counts_PkE: Int[Tensor, "ranks choices experts"], capacity: int | None) -> DispatchPlan:
    """Let each expert's places be taken by all first choices, in rank order, then by all second ones.

    It is the order of one device that has all tokens: `model.experts.find_places`.

    Args:
        counts_PkE: how many of each rank's first, second … choices each expert is.
        capacity: places of an expert, for the tokens of all ranks together; None if there is no limit.

    Raises:
        ValueError: the experts do not divide over the ranks.
    """
    ranks, _, experts = counts_PkE.shape
    if experts % ranks:
        raise ValueError(f"{experts} experts do not split over {ranks} ranks: an expert stays in one piece")
    if capacity is None:
        return DispatchPlan(counts_PkE)
    queue_QE = counts_PkE.transpose(0, 1).flatten(0, 1)  # choice by choice, in it rank by rank
    taken_QE = queue_QE.cumsum(0) - queue_QE
    kept_QE = (capacity - taken_QE).clamp(min=0).minimum(queue_QE)
    return DispatchPlan(kept_QE.view_as(counts_PkE.transpose(0, 1)).transpose(0, 1))


def dispatch(rows: Tensor, plan: DispatchPlan, group: Group = None) -> Tensor:
    """From each rank's rows, in the experts' order, to each rank's experts' rows, expert by expert.

    All ranks of the group must call. Bytes sent: `plan.sent_bytes` forward, `plan.returned_bytes` backward.
    """
    to_experts, home = _both_ways(plan, group)
    return pair(rows, forward=to_experts, backward=home)


def combine(rows: Tensor, plan: DispatchPlan, group: Group = None) -> Tensor:
    """The way back: what `dispatch` moved is where it was.

    All ranks of the group must call. Bytes sent: `plan.returned_bytes` forward, `plan.sent_bytes` backward.
    """
    to_experts, home = _both_ways(plan, group)
    return pair(rows, forward=home, backward=to_experts)


def _both_ways(plan: DispatchPlan, group: Group) -> tuple[Operation, Operation]:
    """What takes rows to the experts, and what takes them home."""
    exchange = plan.exchange(dist.get_rank(group))
    return partial(_to_experts, exchange=exchange, group=group), partial(_home, exchange=exchange, group=group)


def _to_experts(rows: Tensor, exchange: Exchange, group: Group) -> Tensor:
    arrived = uneven_all_to_all(rows, exchange.sends, exchange.receives, group)
    return arrived if exchange.order is None else arrived.index_select(0, exchange.order.to(rows.device))


def _home(rows: Tensor, exchange: Exchange, group: Group) -> Tensor:
    if exchange.order is not None:
        rows = torch.empty_like(rows).index_copy_(0, exchange.order.to(rows.device), rows)
    return uneven_all_to_all(rows, exchange.receives, exchange.sends, group)


def uneven_all_to_all(rows: Tensor, sends: list[int], receives: list[int], group: Group = None) -> Tensor:
    """Send the first `sends[0]` rows to rank 0, the next ones to rank 1 …; what comes lies in rank order."""
    arrived = rows.new_empty(sum(receives), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), receives, sends, group=group)
    return arrived
