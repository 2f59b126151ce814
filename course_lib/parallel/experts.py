"""Expert parallelism: each rank has some of the experts, and tokens travel to them and back.

    layer = ParallelExperts.from_(ExpertMLP(config), {"expert": group})   # the same numbers, cut
    y = layer(own_tokens)                                                 # in place of a block's MLP

Each rank brings tokens of its own, so the axis "expert" carries data parallelism, too: only the experts are cut. Along
"data" there are further copies of the experts, for other tokens; along "tensor" each expert's hidden features are cut,
and the tokens are the same (Fedus et al. 2021, §5; `expert_layout` tells who holds what).

The loss is a sum of the ranks' terms: each divides its own tokens' sum by the number of all tokens, and adds its
`routing` losses, divided by the length of the data axis. An expert then gets its whole gradient by what comes back to
it. What every rank has whole, the router here, gets it by a sum over the ranks. Averaging instead, as data parallelism
does with the mean of its own tokens, gives the router the same; an expert, to whom the tokens of all ranks come, would
have to divide by the number of the ranks along "expert".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_lib.collectives.operators import Group, all_gather, all_reduce, f, f_bar, own_part
from course_lib.model.experts import Choice, ExpertConfig, ExpertMLP, Router, Routing
from course_lib.parallel.dispatch import DispatchPlan, combine, dispatch, plan_dispatch
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
        tokens = slots // self.config.top_k
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
