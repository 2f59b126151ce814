"""Guarded shards and gradients: the commonest misuses of a sharded optimizer raise an error instead of drifting."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


class GuardedPieces(list[nn.Parameter]):
    """The shards of a parameter group; reading them raises until the gradients are reduced to their mean."""

    def __init__(self, pieces: Iterable[nn.Parameter], optimizer: Any) -> None:
        super().__init__(pieces)
        self._optimizer = weakref.ref(optimizer)  # a circle would keep all the memory until Python looks for circles

    def __iter__(self) -> Iterator[nn.Parameter]:
        if (optimizer := self._optimizer()) is not None and optimizer.waits:
            raise ValueError("gradients are not reduced yet; call reduce_gradients() on all ranks, then the scaler")
        return super().__iter__()


class ShardGradient(Tensor):
    """A shard's gradient, whose norm functions raise: each rank would clip by the norm of its own shard."""

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, unless `func` is a norm; the result is a plain tensor."""
        if getattr(func, "__name__", "").endswith("norm"):  # norm, linalg_vector_norm, _foreach_norm
            raise ValueError(
                "this gradient is one rank's shard, with a norm of its own; clip with clip_grad_norm_(max_norm) of the "
                "ZeroOptimizer or Zero3 (the norm of the shard: gradient.as_subclass(torch.Tensor).norm())"
            )
        return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})  # as of a Parameter
