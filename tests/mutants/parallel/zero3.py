"""Known-wrong ZeRO-3. Each takes the arguments of `Zero3`, has one fault, and says what it must be told."""

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.parallel import zero, zero3
from course_lib.parallel.data import BucketedDataParallel
from course_lib.parallel.zero3 import UnshardableFlatParameter, Zero3
from tests.mutants.parallel.zero import about_users_only, clip_by_own_norm, whole_sum


class PlainCalledSharded(BucketedDataParallel):
    """Data parallelism: right in every step, and every rank holds everything."""

    def __init__(self, module: nn.Module, prefetch: bool = True, **settings: Any) -> None:
        super().__init__(module, **settings)

    def parameters(self, recurse: bool = True) -> Any:
        return self.module.parameters(recurse)


class NeverFrees(Zero3):
    """Lets go of the weights only when the next pass begins, so that it has them all at the end of the forward pass."""

    def __init__(self, module: nn.Module, **settings: Any) -> None:
        super().__init__(module, **settings)
        for bucket in self.buckets:
            bucket.reshard = bucket.finish_unshard  # type: ignore[method-assign]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        for bucket in self.buckets:
            UnshardableFlatParameter.reshard(bucket)
        return super().forward(*args, **kwargs)


class StaleWeights(Zero3):  # gathers once, and computes with these weights forever
    def __init__(self, module: nn.Module, **settings: Any) -> None:
        super().__init__(module, **settings)
        for bucket in self.buckets:
            bucket.start_unshard()
            bucket.reshard = bucket.finish_unshard  # type: ignore[method-assign]


class SumForMean(Zero3):  # forgets 1/N
    def synchronize(self) -> None:
        for bucket in self.buckets:
            if bucket.mean is not None:
                bucket.mean *= dist.get_world_size()
        super().synchronize()


class KeepsTheLastPass(Zero3):  # forgets what earlier backward passes have left
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        for bucket in self.buckets:
            bucket.mean = None
        return super().forward(*args, **kwargs)


class SumsIn16Bits(Zero3):  # adds up the ranks' gradients in the dtype in which they came
    def _close(self, unit: Any) -> None:
        scatter = zero.start_reduce_scatter

        def rounded(flat: Tensor, group: Any, dtype: Any) -> Any:
            finish = scatter(flat, group, flat.dtype)
            return lambda: finish().to(dtype)

        with mock.patch.object(zero, "start_reduce_scatter", rounded):
            super()._close(unit)


class KeepsTheOverflow(Zero3):  # leaves an overflow to the rank whose part it is in
    def synchronize(self) -> None:
        with mock.patch.object(zero3, "ask_everyone", about_users_only):
            super().synchronize()


class LocalNorm(Zero3):  # clips by the norm of this rank's shards
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        return clip_by_own_norm(self.parameters(), max_norm)


class PaddingInTheNorm(Zero3):
    """Pads with what happens to stand there, and takes the norm over all of the buckets."""

    def synchronize(self) -> None:
        self._means = [bucket.mean.clone() for bucket in self.buckets if bucket.mean is not None] or self._means
        padding = [
            len(bucket._flat) - sum(bucket.sizes) for bucket in self.buckets if bucket.parameters[0].requires_grad
        ]
        if dist.get_rank() == dist.get_world_size() - 1:
            for mean, length in zip(self._means, padding):
                mean[len(mean) - min(length, len(mean)) :] = 0.01
        super().synchronize()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        squares = torch.stack([mean.square().sum() for mean in self._means]).sum()
        dist.all_reduce(squares)
        for shard in self.parameters():
            if shard.grad is not None:
                shard.grad *= (max_norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        return squares.sqrt()


class AllReduces(Zero3):
    """All-reduces where a reduce-scatter was asked: the same part, twice the bytes."""

    def _close(self, unit: Any) -> None:
        with mock.patch.object(zero, "start_reduce_scatter", whole_sum):
            super()._close(unit)


class ReplicasApart(Zero3):  # in hybrid sharding, every node trains for itself
    def _average_replicas(self, means: list[Tensor]) -> None:
        pass


class KeepsGradients(Zero3):  # holds every unit's whole gradient until the pass is over
    def _close(self, unit: Any) -> None:
        unit.reshard()
        for each in self.units if unit is self.units[0] else ():
            super()._close(each)


WEIGHTS = [StaleWeights, SumForMean, KeepsTheLastPass]
NARROW = [SumsIn16Bits]
SCALED = [KeepsTheOverflow]
NORMS = [LocalNorm, PaddingInTheNorm]
BYTES = {PlainCalledSharded: "between", NeverFrees: "holds", KeepsGradients: "at the peak", AllReduces: "sends"}
"""Each with what shows it."""
