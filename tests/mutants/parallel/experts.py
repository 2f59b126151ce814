"""Known-wrong layers of experts. Each is a ParallelExperts with one fault, and says what it must be told."""

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.model.experts import Choice
from course_lib.parallel import experts
from course_lib.parallel.experts import DispatchPlan, ParallelExperts, plan_dispatch
from tests.parallel import experts_checks as checks


def by_rank() -> Any:
    """Exchanges that leave what arrives as it is."""
    return mock.patch.object(DispatchPlan, "order", lambda plan, rank: None)


class Replicates(ParallelExperts):
    """Every rank computes all experts for its own tokens: right as long as nobody is dropped, and nothing is gained."""

    def __init__(self, layer: Any, groups: Any = None) -> None:
        super().__init__(layer, groups)
        self.up_LDf, self.down_LfD = layer.up_EDF, layer.down_EFD


class ForgetsTheGate(ParallelExperts):  # adds up what the experts say, however sure the router was
    def __init__(self, layer: Any, groups: Any = None) -> None:
        super().__init__(layer, groups)
        self.router.register_forward_hook(
            lambda *given: given[-1]._replace(gates_Tk=torch.ones_like(given[-1].gates_Tk))
        )


class DetachesTheRouter(ParallelExperts):
    """Gates without a gradient: the router learns from the losses of balance alone."""

    def __init__(self, layer: Any, groups: Any = None) -> None:
        super().__init__(layer, groups)
        self.router.register_forward_hook(lambda *given: given[-1]._replace(gates_Tk=given[-1].gates_Tk.detach()))


class GatesOfTheKept(ParallelExperts):
    """Divides a token's gates by the sum of those that found a place, not of all."""

    def forward(self, x: Tensor) -> Tensor:
        x_TD = x.flatten(0, -2)
        choice = self.router(x_TD)
        slots = self.admit(choice)
        kept_Tk = choice.gates_Tk * self.routing.kept_Tk
        gates_Tk = kept_Tk / kept_Tk.sum(-1, keepdim=True).clamp(min=1e-9)
        said = self.ask(x_TD[slots // self.config.top_k]) * gates_Tk.flatten()[slots, None]
        return torch.zeros_like(x_TD).index_add(0, slots // self.config.top_k, said).view_as(x)


class CapacityPerRank(ParallelExperts):
    """An expert has so many places for each rank's tokens, not for all: bytes and drops differ from one device's."""

    def admit(self, choice: Choice) -> Tensor:
        def plan(counts_PkE: Tensor, capacity: int | None) -> DispatchPlan:
            share = None if capacity is None else capacity // len(counts_PkE)
            plans = [plan_dispatch(counts_kE[None], share) for counts_kE in counts_PkE]
            return DispatchPlan(torch.cat([each.kept_PkE for each in plans]))

        with mock.patch.object(experts, "plan_dispatch", plan):
            return super().admit(choice)


class FirstComeFirstServed(ParallelExperts):
    """Ranks queue one behind the other, each with all its choices: second choices take places from first ones."""

    def admit(self, choice: Choice) -> Tensor:
        def plan(counts_PkE: Tensor, capacity: int | None) -> DispatchPlan:
            ranks, choices, _ = counts_PkE.shape
            queued = plan_dispatch(counts_PkE.flatten(0, 1)[:, None].repeat(1, 1, ranks * choices), capacity)
            kept_QE = queued.kept_PkE[:, 0, : counts_PkE.shape[-1]]
            return DispatchPlan(kept_QE.view_as(counts_PkE))

        with mock.patch.object(experts, "plan_dispatch", plan):
            return super().admit(choice)


class DropsTheResidual(ParallelExperts):
    """A token that nobody had a place for leaves as zeros, where the stream should pass it by."""

    top_k = 1

    def residual(self, _: Any, x: Tensor) -> Tensor:
        out = checks.residual(self, x)
        return out * self.routing.kept_Tk.any(-1).view(*x.shape[:-1], 1)


class BalanceOfOneRank(ParallelExperts):
    """Shares counted over this rank's tokens: a product of means is not the mean of products."""

    def admit(self, choice: Choice) -> Tensor:
        slots = super().admit(choice)
        own_E = choice.experts_Tk[:, 0].bincount(minlength=self.config.experts) * dist.get_world_size()
        object.__setattr__(self.routing, "first_E", own_E)
        return slots


class NotGroupedByExpert(ParallelExperts):
    """Takes what arrived rank by rank for what lies expert by expert."""

    def ask(self, rows_RD: Tensor) -> Tensor:
        with by_rank():
            return super().ask(rows_RD)


class WrongWayBack(ParallelExperts):
    """Comes home expert by expert, where rank by rank is due: tokens get each other's answers."""

    def ask(self, rows_RD: Tensor) -> Tensor:
        group = self.groups["expert"]
        said_RD = self.compute(experts.dispatch(rows_RD, self.plan, group))
        with by_rank():
            return experts.combine(said_RD, self.plan, group)


class RouterOfOneRank(ParallelExperts):
    """The router's gradient stays on its rank: the replicas go apart."""

    def __init__(self, layer: Any, groups: Any = None) -> None:
        with mock.patch.object(experts, "add_up_gradients", lambda *_: None):
            super().__init__(layer, groups)


class AveragesTheExperts(ParallelExperts):
    """Divides every gradient by the ranks, as for replicas; but an expert's is whole already."""

    def __init__(self, layer: Any, groups: Any = None) -> None:
        super().__init__(layer, groups)
        for parameter in (self.up_LDf, self.down_LfD):
            parameter.register_hook(lambda grad: grad / dist.get_world_size())


class SendsEverythingToEverybody(ParallelExperts):
    """An all-gather of all tokens, of which an expert picks its own; and another one of what was said."""

    def ask(self, rows_RD: Tensor) -> Tensor:
        sends = self.plan.sends(dist.get_rank())
        padded = F.pad(rows_RD, (0, 0, 0, int(self.plan.kept_PkE.sum((1, 2)).max()) - sum(sends)))
        every = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(every, padded.detach())
        return super().ask(rows_RD)


class PadsToTheCapacity(ParallelExperts):
    """As many rows to everyone, whoever wants them: the even all-to-all of GShard, which sends empty places, too."""

    def ask(self, rows_RD: Tensor) -> Tensor:
        most = int(self.plan.rows_PPL.sum(-1).max())
        even = [most] * dist.get_world_size()
        padded = torch.cat(
            [F.pad(part, (0, 0, 0, most - len(part))) for part in rows_RD.split(self.plan.sends(dist.get_rank()))]
        )
        experts.uneven_all_to_all(padded.detach(), even, even)
        return super().ask(rows_RD)


WRONG: dict[type[ParallelExperts], str] = {
    Replicates: "holds",
    ForgetsTheGate: "in step 0 the output",
    DetachesTheRouter: "in step 0 the gradient of the input",
    GatesOfTheKept: "in step 0 the output",
    CapacityPerRank: "in step 0 the output",
    FirstComeFirstServed: "in step 0 the output",
    DropsTheResidual: "in step 0 the loss",
    BalanceOfOneRank: "in step 0 the loss",
    NotGroupedByExpert: "in step 0 the output",
    WrongWayBack: "in step 0 the output",
    RouterOfOneRank: "in step 0 the gradient of router",
    AveragesTheExperts: "in step 0 the gradient of up",
    SendsEverythingToEverybody: "sends .* by all_gather",
    PadsToTheCapacity: "sends .* by all_to_all",
}
"""Which sentence rejects each."""
