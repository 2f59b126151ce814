"""Expert parallelism: each rank has some of the experts, and tokens travel to them and back.

    layer = ParallelExperts.from_(ExpertMLP(config), {"expert": group})   # the same numbers, cut
    y = layer(own_tokens)                                                 # in place of a block's MLP

Who sends which tokens where is decided from counts alone (`plan_dispatch`: all ranks know them and make one plan), then
two all-to-alls carry the rows, to the experts (`dispatch`) and home (`combine`). A dispatch moves rows and changes
none, so the gradient of each is the other: four all-to-alls in a step, all of the same bytes.

Each rank brings tokens of its own, so the axis "expert" carries data parallelism, too: only the experts are cut. Along
"data" there are further copies of the experts, for other tokens; along "tensor" each expert's hidden features are cut,
and the tokens are the same (Fedus et al. 2021, §5; `holdings` tells who holds what).

The loss is a sum of the ranks' terms: each divides its own tokens' sum by the number of all tokens, and adds its
`routing` losses, divided by the length of the data axis. An expert then gets its whole gradient by what comes back to
it. What every rank has whole, the router here, gets it by a sum over the ranks. Averaging instead, as data parallelism
does with the mean of its own tokens, gives the router the same; an expert, to whom the tokens of all ranks come, would
have to divide by the number of the ranks along "expert".

Suffixes: P ranks, k choices, E experts (of all ranks), L the experts of one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_kit.units import Bytes
from course_lib.collectives.operators import Group, Operation, all_gather, all_reduce, f, f_bar, own_part, pair
from course_lib.model.experts import Choice, ExpertConfig, ExpertMLP, Router, Routing
from course_lib.parallel.mesh import Mesh
from course_lib.parallel.tensor import add_up_gradients

Slots = Int[Tensor, " rows"]
"""A token's choice: number token · k + choice."""


class ParallelExperts(nn.Module):
    """This rank's experts, a whole router, and the way between. All ranks of the groups must construct and call it.

    Bytes sent by each rank along "expert", with n those of the kept choices that go to others' experts: n for each of
    the dispatch and the combine, forward and backward; k · E counts of 8 to everyone; and the router's gradient, summed
    over "expert" and "data". Along "tensor" an all-reduce of the rows that this rank's experts get, in both passes.
    Along "data" the experts' gradients.

    Attributes:
        routing: of the last forward pass, for its losses.
        plan: who sent how much to whom in the last forward pass.
    """

    config: ExpertConfig
    groups: Mapping[str, Group]
    router: Router
    up_LDf: nn.Parameter
    down_LfD: nn.Parameter
    routing: Routing
    plan: DispatchPlan

    @classmethod
    def from_(cls, layer: ExpertMLP, groups: Mapping[str, Group] | None = None) -> Self:
        """Cut a layer that every rank has built alike.

        Args:
            layer: stays as it is.
            groups: axis → this rank's group along it, as `mesh.process_groups` gives them: "expert", and "data" and
                "tensor" where there are such. By default all ranks are along "expert".

        Raises:
            ValueError: the experts do not divide over "expert", or their hidden features over "tensor".
        """
        self = cls()
        self.config, self.groups = layer.config, {"expert": None} if groups is None else groups
        self.router = Router(self.config.experts, self.config.width, self.config.top_k)
        self.router.weight = nn.Parameter(layer.router.weight.detach().clone())
        self.up_LDf = self._part(layer.up_EDF, hidden=2)
        self.down_LfD = self._part(layer.down_EFD, hidden=1)
        has_grouped_product(self.up_LDf.device.type, self.up_LDf.dtype)  # tries now, while nobody counts operations
        for axis in self.groups.keys() - {"tensor"}:
            add_up_gradients(self.router, self.groups[axis])
        if "data" in self.groups:
            for weight in (self.up_LDf, self.down_LfD):
                weight.register_hook(partial(all_reduce, group=self.groups["data"]))
        return self

    def _part(self, whole: Tensor, hidden: int) -> nn.Parameter:
        part = own_part(whole.detach(), 0, self.groups["expert"])
        return nn.Parameter(own_part(part, hidden, self.groups["tensor"]) if "tensor" in self.groups else part)

    def forward(self, x: Float[Tensor, "*dims width"]) -> Float[Tensor, "*dims width"]:
        """The weighted sum of what each of this rank's tokens' experts say, wherever they are."""
        x_TD = x.flatten(0, -2)
        choice = self.router(x_TD)
        slots = self.admit(choice)
        tokens = slots // self.config.top_k  # a slot is top_k times the token's number, plus that of its choice
        said_RD = self.ask(x_TD.index_select(0, tokens))
        gates_R = choice.gates_Tk.flatten().index_select(0, slots).to(x.dtype)
        return torch.zeros_like(x_TD).index_add(0, tokens, said_RD * gates_R[:, None]).view_as(x)

    def admit(self, choice: Choice) -> Slots:
        """Agree with the other ranks on who finds a place; sets `plan` and `routing`.

        Returns:
            The choices of this rank's tokens that did, in the order of the experts.
        """
        experts, k = self.config.experts, self.config.top_k
        key_S = (choice.experts_Tk * k + torch.arange(k, device=choice.experts_Tk.device)).flatten()
        counts_Ek = key_S.bincount(minlength=experts * k).view(experts, k)
        counts_PkE = all_gather(counts_Ek.T[None], 0, self.groups["expert"]).cpu()
        tokens = int(counts_PkE[:, 0].sum())
        self.plan = plan_dispatch(counts_PkE, self.config.capacity(tokens))
        order_S = key_S.argsort(stable=True)  # by expert, in it by choice, in it by token
        kept_Ek = self.plan.kept_PkE[dist.get_rank(self.groups["expert"])].T
        slots = order_S[first_of_each(counts_Ek.flatten(), kept_Ek.flatten().to(order_S.device))]
        kept_S = torch.zeros_like(key_S, dtype=torch.bool).index_fill(0, slots, True)
        first_E = counts_PkE[:, 0].sum(0).to(order_S.device)
        self.routing = Routing(choice, kept_S.view_as(choice.experts_Tk), first_E, tokens)
        return slots

    def ask(self, rows_RD: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        """Send rows, which lie in the order of the experts, to these, and bring home what they say."""
        group = self.groups["expert"]
        return combine(self.compute(dispatch(rows_RD, self.plan, group)), self.plan, group)

    def compute(self, rows_RD: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        """This rank's experts, each with the rows that came for it."""
        loads = self.plan.loads(dist.get_rank(self.groups["expert"]))
        rows_RD = f(rows_RD, self.groups["tensor"]) if "tensor" in self.groups else rows_RD
        hidden_Rf = F.gelu(grouped_product(rows_RD, self.up_LDf, loads), approximate="tanh")
        said_RD = grouped_product(hidden_Rf, self.down_LfD, loads)
        return f_bar(said_RD, self.groups["tensor"]) if "tensor" in self.groups else said_RD


def first_of_each(lengths: Int[Tensor, " runs"], kept: Int[Tensor, " runs"]) -> Tensor:
    """Of runs that lie one behind the other: which elements are among the first `kept` of their run."""
    starts = lengths.cumsum(0) - lengths
    place = torch.arange(int(lengths.sum()), device=lengths.device) - starts.repeat_interleave(lengths)
    return place < kept.repeat_interleave(lengths)


def grouped_product(rows: Tensor, weights: Tensor, loads: list[int]) -> Tensor:
    """Each matrix with its own rows: the first `loads[0]` rows with the first matrix, and so on.

    One call of torch's where it has one for this device and dtype (`has_grouped_product`) and the rows begin at whole
    16 bytes; else a product for each matrix.

    Args:
        rows: [rows, n].
        weights: [matrices, n, m].
        loads: rows of each matrix.
    """
    aligned = all(size * rows.element_size() % 16 == 0 for size in weights.shape[1:])
    if aligned and has_grouped_product(rows.device.type, rows.dtype):
        ends = torch.tensor(loads, device=rows.device).cumsum(0).int()
        return F.grouped_mm(rows, weights, offs=ends)
    return torch.cat([part @ weight for part, weight in zip(rows.split(loads), weights)])


@cache
def has_grouped_product(device: str, dtype: torch.dtype) -> bool:
    """Whether this PyTorch's `grouped_mm` takes such tensors, there and back: asked once, by trying.

    PyTorch 2.13 on a CPU: 16 and 32 bits, but not 64. On GPUs bf16 alone, in most versions.
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


AXES = ("data", "expert", "tensor")
"""What a mesh of experts can have."""


class Holding(NamedTuple):
    """What one rank has.

    Attributes:
        experts: which of them.
        hidden: which of their hidden features.
        tokens: which of the batch's.
    """

    experts: range
    hidden: range
    tokens: range

    def parameters(self, config: ExpertConfig) -> int:
        """How many it holds, the router's, which is whole, among them."""
        return 2 * len(self.experts) * len(self.hidden) * config.width + config.experts * config.width


def holdings(mesh: Mesh, config: ExpertConfig, tokens: int) -> list[Holding]:
    """What each rank has, in rank order: as `parallel.experts` cuts.

    Args:
        mesh: with some of `AXES`.
        config: the layer.
        tokens: of the whole batch.

    Raises:
        ValueError: an axis that cuts nothing here, or a number that does not divide.
    """
    if unknown := set(mesh.axes) - set(AXES):
        raise ValueError(f"axis {', '.join(sorted(unknown))}: a layer of experts is cut along {', '.join(AXES)}")
    data, expert, tensor = (mesh.axes.get(axis, 1) for axis in AXES)
    for what, number, ranks in (
        ("experts", config.experts, expert),
        ("hidden features", config.hidden, tensor),
        ("tokens", tokens, data * expert),
    ):
        if number % ranks:
            raise ValueError(f"{number} {what} do not split into {ranks} equal parts: choose a number that divides")
    found = []
    for rank in range(mesh.size):
        place = dict.fromkeys(AXES, 0) | mesh.coordinates(rank)
        own_tokens = _part(tokens, data * expert, place["data"] * expert + place["expert"])
        found.append(
            Holding(
                _part(config.experts, expert, place["expert"]),
                _part(config.hidden, tensor, place["tensor"]),
                own_tokens,
            )
        )
    return found


def _part(number: int, parts: int, which: int) -> range:
    length = number // parts
    return range(which * length, (which + 1) * length)
