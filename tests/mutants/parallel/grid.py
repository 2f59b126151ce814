"""Known-wrong grids. Each is a `Grid` with one fault, and says what it must be told."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from course_lib.parallel.grid import Grid
from course_lib.parallel.mesh import Mesh


class ReplicasApart(Grid):
    """No replica hears of the others."""

    def _add_up_replicas(self, share: float) -> None:
        pass


class EqualReplicas(Grid):
    """The mean of the replicas' gradients, whatever number of targets they have."""

    def _add_up_replicas(self, share: float) -> None:
        super()._add_up_replicas(1 / self.mesh.axes["data"])


class SumOfReplicas(Grid):
    """The sum of the replicas' gradients."""

    def _add_up_replicas(self, share: float) -> None:
        super()._add_up_replicas(1.0)


class LossOfOneReplica(Grid):
    """Every rank reports its own replica's loss."""

    def _everyones_loss(self, own: Tensor | None, share: float) -> Tensor:
        assert own is not None
        return own


class DataAcrossTensor(Grid):
    """Axes mixed up: gradients are added over the ranks that share a layer."""

    def _add_up_replicas(self, share: float) -> None:
        self.groups = self.groups | {"data": self.groups["tensor"]}
        super()._add_up_replicas(share)


class OnlyReplicas(Grid):
    """Says that it cuts layers, and holds whole ones: four replicas, two of them alike."""

    def __init__(self, config, mesh, **how) -> None:  # type: ignore[no-untyped-def]
        super().__init__(config, Mesh({"pipe": 1, "data": mesh.size, "tensor": 1}), **how)


class SendsTwice(Grid):
    """Adds up the gradients, and then the mean of what everyone has: right, and twice as expensive."""

    def _add_up_replicas(self, share: float) -> None:
        super()._add_up_replicas(share)
        super()._add_up_replicas(1 / dist.get_world_size(self.groups["data"]))


WRONG = {
    ReplicasApart: "step 0: the gradient of",
    EqualReplicas: "step 0: the gradient of",
    SumOfReplicas: "step 0: the gradient of",
    LossOfOneReplica: "step 0: the loss is",
    DataAcrossTensor: "step 0: the loss is",
    OnlyReplicas: "holds",
    SendsTwice: "sends",
}
"""Which sentence rejects each."""
