"""Expert parallelism: each rank has some of the experts, and tokens travel to them and back.

    layer = ParallelExperts(ExpertMLP(config), {"expert": group})         # the same numbers, cut
    y = layer(own_tokens)                                                 # in place of a block's MLP

    rank 0: tokens ── router ── rows by expert ──╮  dispatch  ╭── rows of all ranks ── experts 0 and 1 ──╮  combine
    rank 1: tokens ── router ── rows by expert ──╯ all-to-all ╰── rows of all ranks ── experts 2 and 3 ──╯  all-to-all

All ranks make one plan from counts alone (`plan_dispatch`). `dispatch` and `combine` move rows and change none, so the
gradient of each is the other: four all-to-alls in a step, all of the same bytes.

Each rank brings tokens of its own, so the axis "expert" carries data parallelism, too: only the experts are cut. Along
"data" there are further copies of the experts, for other tokens; along "tensor" each expert's hidden features are cut,
and the tokens are the same (Fedus et al. 2021, §5; see `holdings`).

The loss is a sum of the ranks' terms: each divides its own tokens' sum by the number of all tokens, and adds its
`routing` losses, divided by the length of the data axis. An expert then gets its whole gradient with the rows that come
back to it; the router, which every rank has whole, by a sum over the ranks. (With means of the own tokens, as in data
parallelism, the router's gradient is averaged, and an expert's divided by the number of ranks along "expert".)

Suffixes: P ranks, k choices, E experts (of all ranks), L the experts of one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_kit.units import Bytes
from course_lib.collectives.operators import Group, Operation, all_gather, all_reduce, f, f_bar, own_part, pair
from course_lib.model.experts import Choice, ExpertConfig, ExpertMLP, Routing
from course_lib.parallel.mesh import Mesh
from course_lib.parallel.tensor import add_up_gradients


class ParallelExperts(nn.Module):
    """This rank's experts, a whole router, and the way between. All ranks of the groups must construct and call it.

    Bytes sent by each rank along "expert", with n those of the kept choices that go to others' experts: n for each of
    the dispatch and the combine, forward and backward; k · E counts of 8 to everyone; and the router's gradient, summed
    over "expert" and "data". Along "tensor" an all-reduce of the rows that this rank's experts get, in both passes.
    Along "data" the experts' gradients.

    Args:
        layer: the unsplit experts, which every rank has built alike; they stay as they are.
        groups: axis → this rank's group along it, as `mesh.process_groups` gives them: "expert", and "data" and
            "tensor" where there are such. By default all ranks are along "expert".

    Attributes:
        routing: the router's choices in the last forward pass, for the losses of balance.
        plan: the rows that ranks sent to each other in the last forward pass.

    Raises:
        ValueError: the experts do not divide over "expert", or their hidden features over "tensor".
    """

    routing: Routing
    plan: DispatchPlan

    def __init__(self, layer: ExpertMLP, groups: Mapping[str, Group] | None = None) -> None:
        super().__init__()
        self.config = layer.config
        self.groups: Mapping[str, Group] = {"expert": None} if groups is None else groups
        self.router = deepcopy(layer.router)
        self.up_LDf = self._part(layer.up_EDF, hidden=2)
        self.down_LfD = self._part(layer.down_EFD, hidden=1)
        has_grouped_product(self.up_LDf.device.type, self.up_LDf.dtype)  # now: a trial must not count as a step's work
        for axis in sorted(self.groups.keys() - {"tensor"}):  # a set's order differs between processes
            add_up_gradients(self.router, self.groups[axis])
        if "data" in self.groups:
            for weight in filter(lambda weight: weight.requires_grad, (self.up_LDf, self.down_LfD)):
                weight.register_hook(partial(all_reduce, group=self.groups["data"]))

    def _part(self, whole: Tensor, hidden: int) -> nn.Parameter:
        part = own_part(whole.detach(), 0, self.groups["expert"])
        part = own_part(part, hidden, self.groups["tensor"]) if "tensor" in self.groups else part
        return nn.Parameter(part, whole.requires_grad)

    def forward(self, x: Float[Tensor, "*dims width"]) -> Float[Tensor, "*dims width"]:
        """The weighted sum, for each of this rank's tokens, of its experts' outputs, on whichever ranks these are."""
        x_TD = x.flatten(0, -2)
        choice = self.router(x_TD)
        slots = self.admit(choice)
        tokens = slots // self.config.top_k  # a slot is top_k times the token's number, plus that of its choice
        out_RD = self.ask(x_TD.index_select(0, tokens))  # (T, D) -> (R, D): a row for each kept choice
        gates_R = choice.gates_Tk.flatten().index_select(0, slots).to(x.dtype)
        return torch.zeros_like(x_TD).index_add(0, tokens, out_RD * gates_R[:, None]).view_as(x)

    def admit(self, choice: Choice) -> Int[Tensor, " rows"]:
        """Agree on `plan` and `routing` with the other ranks; return this rank's kept choices, expert by expert."""
        experts, k = self.config.experts, self.config.top_k
        # sorts by expert first, then by choice: all first choices of an expert before any second one
        key_S = (choice.experts_Tk * k + torch.arange(k, device=choice.experts_Tk.device)).flatten()
        counts_Ek = key_S.bincount(minlength=experts * k).view(experts, k)
        counts_PkE = all_gather(counts_Ek.T[None], 0, self.groups["expert"]).cpu()  # (1, k, E) -> (P, k, E)
        tokens = int(counts_PkE[:, 0].sum())
        self.plan = plan_dispatch(counts_PkE, self.config.capacity(tokens))
        order_S = key_S.argsort(stable=True)  # stable: by token among equals
        kept_Ek = self.plan.kept_PkE[dist.get_rank(self.groups["expert"])].T
        slots = order_S[first_of_each(counts_Ek.flatten(), kept_Ek.flatten().to(order_S.device))]
        kept_S = torch.zeros_like(key_S, dtype=torch.bool).index_fill(0, slots, True)
        first_E = counts_PkE[:, 0].sum(0).to(order_S.device)
        self.routing = Routing(choice, kept_S.view_as(choice.experts_Tk), first_E, tokens)
        return slots

    def ask(self, rows_RD: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        """Send rows, which lie in the order of the experts, to the experts, and bring their outputs home."""
        group = self.groups["expert"]
        return combine(self.compute(dispatch(rows_RD, self.plan, group)), self.plan, group)

    def compute(self, rows_RD: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        """The outputs of this rank's experts, of the rows that came for each."""
        loads = self.plan.loads(dist.get_rank(self.groups["expert"]))
        rows_RD = f(rows_RD, self.groups["tensor"]) if "tensor" in self.groups else rows_RD
        hidden_Rf = F.gelu(grouped_product(rows_RD, self.up_LDf, loads), approximate="tanh")
        out_RD = grouped_product(hidden_Rf, self.down_LfD, loads)  # with "tensor" a term of the sum over f
        return f_bar(out_RD, self.groups["tensor"]) if "tensor" in self.groups else out_RD


def plan_dispatch(counts_PkE: Int[Tensor, "ranks choices experts"], capacity: int | None) -> DispatchPlan:
    """Fill each expert's places with all first choices, in rank order, then with all second ones.

    That is the order of one device that has all tokens: `model.experts.find_places`. `counts_PkE` counts the choices of
    each rank; an expert has `capacity` places for the tokens of all ranks together, with None no limit.

    Raises:
        ValueError: the experts do not divide over the ranks.
    """
    ranks, _, experts = counts_PkE.shape
    if experts % ranks:
        raise ValueError(f"{experts} experts do not split over {ranks} ranks: an expert stays in one piece")
    if capacity is None:
        return DispatchPlan(counts_PkE)
    queue_QE = counts_PkE.transpose(0, 1).flatten(0, 1)  # choice by choice, in it rank by rank
    taken_QE = queue_QE.cumsum(0) - queue_QE  # places taken before each entry of the queue
    kept_QE = (capacity - taken_QE).clamp(min=0).minimum(queue_QE)
    return DispatchPlan(kept_QE.view_as(counts_PkE.transpose(0, 1)).transpose(0, 1))


@dataclass(frozen=True, eq=False)
class DispatchPlan:
    """The numbers of rows that go from rank to rank: plain data, which is printed, drawn and tested without a process.

    Attributes:
        kept_PkE: each rank's first, second … choices that find a place at each expert, counted. Of P ranks each has
            E / P experts, in rank order.
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

    def order(self, rank: int) -> Int[Tensor, " rows"] | None:
        """The permutation of arrived rows from rank by rank to expert by expert; None if the two orders agree."""
        rows_PL = self.rows_PPL[:, rank]
        if 1 in rows_PL.shape:  # one source, or one expert
            return None
        expert_of_row = torch.arange(rows_PL.shape[1]).repeat(len(rows_PL)).repeat_interleave(rows_PL.flatten())
        return expert_of_row.argsort(stable=True)

    def sent_bytes(self, rank: int, row_bytes: int) -> Bytes:
        """Bytes that a rank sends to others in a dispatch, with `row_bytes` for a token."""
        sends = self.sends(rank)
        return Bytes((sum(sends) - sends[rank]) * row_bytes)

    def returned_bytes(self, rank: int, row_bytes: int) -> Bytes:
        """Bytes that a rank sends to others in a combine: those that it received in the dispatch."""
        receives = self.receives(rank)
        return Bytes((sum(receives) - receives[rank]) * row_bytes)


def dispatch(rows: Tensor, plan: DispatchPlan, group: Group = None) -> Tensor:
    """Send each rank's rows, which lie expert by expert, to the experts; they arrive expert by expert.

    All ranks of the group must call. Bytes sent: `plan.sent_bytes` forward, `plan.returned_bytes` backward.
    """
    to_experts, home = _both_ways(plan, group)
    return pair(rows, forward=to_experts, backward=home)


def combine(rows: Tensor, plan: DispatchPlan, group: Group = None) -> Tensor:
    """Send the rows back: each is then where it was before `dispatch`.

    All ranks of the group must call. Bytes sent: `plan.returned_bytes` forward, `plan.sent_bytes` backward.
    """
    to_experts, home = _both_ways(plan, group)
    return pair(rows, forward=home, backward=to_experts)


def _both_ways(plan: DispatchPlan, group: Group) -> tuple[Operation, Operation]:
    """The operations that move rows to the experts, and home."""
    rank = dist.get_rank(group)
    sends, receives, order = plan.sends(rank), plan.receives(rank), plan.order(rank)

    def to_experts(rows: Tensor) -> Tensor:
        arrived = uneven_all_to_all(rows, sends, receives, group)
        return arrived if order is None else arrived.index_select(0, order.to(rows.device))

    def home(rows: Tensor) -> Tensor:
        if order is not None:
            rows = torch.empty_like(rows).index_copy_(0, order.to(rows.device), rows)  # undoes index_select
        return uneven_all_to_all(rows, receives, sends, group)

    return to_experts, home


def uneven_all_to_all(rows: Tensor, sends: list[int], receives: list[int], group: Group = None) -> Tensor:
    """Send the first `sends[0]` rows to rank 0, the next ones to rank 1 …; received rows lie in rank order."""
    arrived = rows.new_empty(sum(receives), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), receives, sends, group=group)
    return arrived


def first_of_each(lengths: Int[Tensor, " runs"], kept: Int[Tensor, " runs"]) -> Tensor:
    """A mask over runs that lie end to end: the first `kept` elements of each."""
    starts = lengths.cumsum(0) - lengths
    place = torch.arange(int(lengths.sum()), device=lengths.device) - starts.repeat_interleave(lengths)
    return place < kept.repeat_interleave(lengths)


def grouped_product(rows: Tensor, weights: Tensor, loads: list[int]) -> Tensor:
    """Multiply the first `loads[0]` rows by the first matrix, the next `loads[1]` by the second, and so on.

    PyTorch's one call where there is one for this device and dtype (`has_grouped_product`) and rows begin at whole 16
    bytes; else a product for each matrix. Shapes: (rows, n), (matrices, n, m) -> (rows, m).
    """
    aligned = all(size * rows.element_size() % 16 == 0 for size in weights.shape[1:])
    if aligned and has_grouped_product(rows.device.type, rows.dtype):
        ends = torch.tensor(loads, device=rows.device).cumsum(0).int()
        return F.grouped_mm(rows, weights, offs=ends)
    return torch.cat([part @ weight for part, weight in zip(rows.split(loads), weights)])


@cache
def has_grouped_product(device: str, dtype: torch.dtype) -> bool:
    """Whether this PyTorch's `grouped_mm` takes such tensors, forward and backward; tried once.

    PyTorch 2.13 takes 16 and 32 bits on a CPU, but not 64; on GPUs most versions take bf16 alone.
    """
    if not hasattr(F, "grouped_mm"):
        return False
    kwargs: dict[str, Any] = {"device": device, "dtype": dtype, "requires_grad": True}
    rows, weights = torch.ones(16, 16, **kwargs), torch.ones(2, 16, 16, **kwargs)
    try:
        product = F.grouped_mm(rows, weights, offs=torch.tensor([8, 16], device=device, dtype=torch.int32))
        product.backward(torch.ones_like(product))
    except (RuntimeError, NotImplementedError):
        return False
    return True


AXES = ("data", "expert", "tensor")
"""The axes that a mesh of experts can have."""


class Holding(NamedTuple):
    """The part of the layer and of the batch that one rank has."""

    experts: range
    hidden: range  # features of each expert's hidden layer
    tokens: range

    def parameters(self, config: ExpertConfig) -> int:
        """The number of parameters, the whole router's among them."""
        return 2 * len(self.experts) * len(self.hidden) * config.width + config.experts * config.width


def holdings(mesh: Mesh, config: ExpertConfig, tokens: int) -> list[Holding]:
    """Each rank's part of a layer and of a batch of `tokens`, in rank order, as `ParallelExperts` cuts.

    Raises:
        ValueError: an axis that cuts nothing here, or a number that does not divide.
    """
    if unknown := set(mesh.axes) - set(AXES):
        raise ValueError(f"axis {', '.join(sorted(unknown))}: a layer of experts is cut along {', '.join(AXES)}")
    data, expert, tensor = (mesh.axes.get(axis, 1) for axis in AXES)
    cut = (("experts", config.experts, expert), ("hidden features", config.hidden, tensor))
    for what, number, ranks in (*cut, ("tokens", tokens, data * expert)):
        if number % ranks:
            raise ValueError(f"{number} {what} do not split into {ranks} equal parts: choose a number that divides")
    parts = []
    for rank in range(mesh.size):
        at_data, at_expert, at_tensor = (mesh.coordinates(rank).get(axis, 0) for axis in AXES)
        experts = _part(config.experts, expert, at_expert)
        hidden = _part(config.hidden, tensor, at_tensor)
        parts.append(Holding(experts, hidden, _part(tokens, data * expert, at_data * expert + at_expert)))
    return parts


def _part(number: int, parts: int, which: int) -> range:
    length = number // parts
    return range(which * length, (which + 1) * length)
