"""Known-wrong grids. Each is a `HybridParallel` with one fault, and says what it must be told."""

from typing import Any

import torch
from torch import Tensor

from course_lib.collectives.operators import own_part
from course_lib.parallel.data import Bucket, plan_buckets
from course_lib.parallel.hybrid import AnyOptimizer, HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.train.accumulate import count_tokens


class ReplicasApart(HybridParallel):  # no replica hears of the others
    def _average_replicas(self) -> None:
        pass


class EqualReplicas(HybridParallel):
    """The mean of the replicas' own means, whatever number of targets they have."""

    def _tokens_of_a_replica(self, targets: Tensor) -> float:
        return count_tokens(own_part(targets, 0, self.groups["data"]))


class SumOfReplicas(HybridParallel):  # the sum of the replicas' gradients
    def _average_replicas(self) -> None:
        super()._average_replicas()
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad *= self.mesh.axes["data"]


class LossOfOneReplica(HybridParallel):  # every rank reports its own replica's loss
    def _everyones_loss(self, own: Tensor | None) -> Tensor:
        assert own is not None
        return own


class DataAcrossTensor(HybridParallel):
    """Axes mixed up: gradients are averaged over the ranks that share a layer."""

    def _average_replicas(self) -> None:
        self.groups = self.groups | {"data": self.groups["tensor"]}
        super()._average_replicas()


class OnlyReplicas(HybridParallel):
    """Says that it cuts layers, and holds whole ones: four replicas, two of them alike."""

    def __init__(self, config, mesh, **how) -> None:  # type: ignore[no-untyped-def]
        super().__init__(config, Mesh({"pipeline": 1, "data": mesh.size, "tensor": 1}), **how)


class SendsTwice(HybridParallel):
    """Averages the gradients, and then what everyone has: right, and twice as expensive."""

    def _average_replicas(self) -> None:
        super()._average_replicas()
        super()._average_replicas()


class StateOfEveryReplica(HybridParallel):
    """Says that it cuts the state, and every replica keeps the whole."""

    def optimizer(self, optimizer_cls: type[torch.optim.Optimizer], **arguments: Any) -> torch.optim.Optimizer:
        self.zero = 0
        plan = plan_buckets(list(self.parameters()), 1024)
        self._buckets = [Bucket([list(self.parameters())[n] for n in numbers]) for numbers in plan]
        return super().optimizer(optimizer_cls, **arguments)  # type: ignore[return-value]


class ZeroAcrossTensor(HybridParallel):
    """Axes mixed up: the state is cut over the ranks that share a layer."""

    def optimizer(self, optimizer_cls: type[torch.optim.Optimizer], **arguments: Any) -> AnyOptimizer:
        self.groups = self.groups | {"data": self.groups["tensor"]}
        return super().optimizer(optimizer_cls, **arguments)


class NormOfThisRank(HybridParallel):  # each rank clips to the norm of what it holds
    def clip_grad_norm_(self, optimizer: AnyOptimizer, max_norm: float) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(self.parameters(), max_norm)


class CopiesCount(HybridParallel):  # what each tensor rank holds whole counts on all of them
    def _where_to_count(self, stage: Any) -> Any:
        return ((p, here or p is not stage.tied_weight) for p, here in super()._where_to_count(stage))


class TiedTableTwice(HybridParallel):  # the tied table's gradient counts at both ends
    def _where_to_count(self, stage: Any) -> Any:
        return ((p, here or p is stage.tied_weight) for p, here in super()._where_to_count(stage))


WRONG = {
    ReplicasApart: "in step 0: .*the gradient of",
    EqualReplicas: "in step 0: the loss is off",
    SumOfReplicas: "in step 0: .*the gradient of",
    LossOfOneReplica: "in step 0: the loss is off",
    DataAcrossTensor: "in step 0: the loss is off",
    OnlyReplicas: "holds",
    SendsTwice: "sends",
    StateOfEveryReplica: "keeps the state of",
    ZeroAcrossTensor: "at the start: the weight of",
    NormOfThisRank: "in step 0: the norm is off",
    CopiesCount: "in step 0: the norm is off",
    TiedTableTwice: "in step 0: the norm is off",
}
"""Which sentence rejects each."""
OF_ZERO = StateOfEveryReplica, ZeroAcrossTensor
