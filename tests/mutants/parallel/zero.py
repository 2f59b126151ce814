"""Known-wrong ZeRO. Each takes the arguments of `ZeroOptimizer`, has one fault, and says what it must be told."""

from collections.abc import Iterable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.parallel import zero
from course_lib.parallel.zero import ReplicatedFlatShard, ZeroOptimizer, ask_everyone


class PlainAdamWCalledSharded:
    """Averages the gradients and steps on all of the weights: right, and nothing is sharded."""

    def __init__(self, params: Any, kind: Any, stage: int = 1, bucket_bytes: int = 0, **settings: Any) -> None:
        self.optimizer, self.buckets = kind(params, **settings), []

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad.div_(dist.get_world_size()))
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


class SumForMean(ZeroOptimizer):  # forgets 1/N
    def reduce_gradients(self) -> None:
        reduced = self._reduced
        super().reduce_gradients()
        for piece in self.pieces:
            if piece.value.grad is not None and not reduced:
                piece.value.grad *= dist.get_world_size()


def clip_by_own_norm(shards: Iterable[Tensor], max_norm: float) -> Tensor:
    """As `torch.nn.utils.clip_grad_norm_`, of which a `ShardGradient` would complain."""
    parts = [shard.grad.as_subclass(Tensor) for shard in shards if shard.grad is not None]
    norm = torch.nn.utils.get_total_norm(parts)
    for part in parts:
        part.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


class LocalNorm(ZeroOptimizer):  # clips by the norm of this rank's part
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        self.reduce_gradients()
        return clip_by_own_norm([piece.value for piece in self.pieces], max_norm)


class NormBeforeTheMean(ZeroOptimizer):  # clips the gradients of this rank's own share of the batch
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(self.parameters, max_norm)


class KeepsGradients(ZeroOptimizer):  # stage 2 that reduces and does not drop
    def _reduce_next(self) -> None:
        bucket = self.buckets[self._next]
        kept = [parameter.grad for parameter in bucket.parameters]
        super()._reduce_next()
        for parameter, grad in zip(bucket.parameters, kept):
            parameter.grad = grad

    def reduce_gradients(self) -> None:
        """Out of the sight of the check for gradients that were assigned."""
        kept = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        super().reduce_gradients()
        for parameter, grad in zip(self.parameters, kept):
            parameter.grad = grad


class KeepsItsOwnPart(ZeroOptimizer):  # steps, and does not tell the others
    def step(self) -> None:
        gather = ReplicatedFlatShard.start_all_gather_weights
        ReplicatedFlatShard.start_all_gather_weights = _sends_nothing  # type: ignore[method-assign]
        try:
            super().step()
        finally:
            ReplicatedFlatShard.start_all_gather_weights = gather


def _sends_nothing(bucket: ReplicatedFlatShard) -> Any:
    """As `start_all_gather_weights`, and nobody hears of it."""
    return dist.barrier(async_op=True)


def whole_sum(flat: Tensor, group: Any, dtype: Any) -> Any:
    """As `start_reduce_scatter`, by way of an all-reduce."""
    dist.all_reduce(flat)
    return lambda: flat.chunk(dist.get_world_size())[dist.get_rank()].to(dtype, copy=True)


class AllReduces(ZeroOptimizer):
    """All-reduces where a reduce-scatter was asked: the same part, twice the bytes."""

    def reduce_gradients(self) -> None:
        """With all of the sum on every rank, for a moment."""
        with mock.patch.object(zero, "start_reduce_scatter", whole_sum):
            super().reduce_gradients()


def about_users_only(used: Tensor, means: Any, groups: Any, device: torch.device) -> tuple[list[int], bool]:
    """As `ask_everyone`, and each rank keeps its overflow for itself."""
    return ask_everyone(used, [], groups, device)


class EachDecidesAlone(ZeroOptimizer):  # skips a step where this rank's own part has an overflow
    def reduce_gradients(self) -> None:
        with mock.patch.object(zero, "ask_everyone", about_users_only):
            super().reduce_gradients()


class SkipsWhatItHasSeen(ZeroOptimizer):
    """Looks for an overflow in the gradients of this rank's own share of the batch, and of nobody else's."""

    def reduce_gradients(self) -> None:
        fine = all(bool(p.grad.isfinite().all()) for p in self.parameters if p.grad is not None)
        with mock.patch.object(zero, "ask_everyone", about_users_only):
            super().reduce_gradients()
        for piece in self.pieces:
            if piece.value.grad is not None:
                piece.value.grad = torch.nan_to_num(piece.value.grad) if fine else piece.value.grad * torch.inf


WRONG_WEIGHTS = [SumForMean, KeepsItsOwnPart]
WRONG_NORMS = [LocalNorm, NormBeforeTheMean]
WRONG_SCALED = [EachDecidesAlone, SkipsWhatItHasSeen]
WRONG_BYTES = {PlainAdamWCalledSharded: 1, KeepsGradients: 2, AllReduces: 1}
"""Each with the stage in which it is wrong."""
