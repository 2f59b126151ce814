"""Known-wrong data parallelism. Each class breaks one thing that `tests/parallel/test_data.py` must notice."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

from course_lib.parallel import BucketedDataParallel, NaiveDataParallel, data


class Unsynchronized(BucketedDataParallel):  # has every hook and method, and sends nothing
    def synchronize(self) -> None:
        """Pretend."""

    def _on_gradient(self, number: int) -> None:
        pass


class SumForMean(BucketedDataParallel):  # forgets 1/p. Adam hardly notices
    def __init__(self, module: nn.Module, **kwargs: Any) -> None:
        super().__init__(module, **kwargs)
        self.world_size = 1


class NaiveSumForMean(NaiveDataParallel):  # forgets 1/p, one by one
    def synchronize(self) -> None:
        self.world_size = 1
        super().synchronize()


class ReducedBeforeFull(BucketedDataParallel):
    """Sends a bucket at its first gradient; the others in it are missing."""

    def _on_gradient(self, number: int) -> None:
        bucket = self._bucket_of[number]
        if self._syncing and not bucket.ready:
            bucket.ready.update(range(len(bucket.parameters)))
            while self._sent < len(self.buckets) and self.buckets[self._sent].is_full:
                self._send_next()


class NoBroadcast(BucketedDataParallel):  # trusts that all ranks were built alike
    def __init__(self, module: nn.Module, **kwargs: Any) -> None:
        with mock.patch.object(data, "broadcast_module"):
            super().__init__(module, **kwargs)


class OnlyParametersBroadcast(BucketedDataParallel):  # forgets the buffers
    def __init__(self, module: nn.Module, **kwargs: Any) -> None:
        kept = [buffer.clone() for buffer in module.buffers()]
        super().__init__(module, **kwargs)
        for buffer, value in zip(module.buffers(), kept):
            buffer.copy_(value)


class ZerosForUnused(BucketedDataParallel):
    """Gives a parameter that nobody used a gradient of zeros, on which weight decay moves it."""

    def synchronize(self) -> None:
        for parameter in self._trainable:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        super().synchronize()


class OwnGradientForRare(BucketedDataParallel):
    """A rank that did not use a parameter keeps None while the others move it."""

    def synchronize(self) -> None:
        unused = [parameter for parameter in self._trainable if parameter.grad is None]
        super().synchronize()
        for parameter in unused:
            parameter.grad = None


class DeafToNoSync(BucketedDataParallel):  # sends in every micro-batch
    @contextmanager
    def no_sync(self) -> Iterator[None]:
        yield
        self.synchronize()


class SendsFrozen(BucketedDataParallel):
    """Sends gradients that do not exist, for frozen parameters too."""

    def synchronize(self) -> None:
        super().synchronize()
        for parameter in self._frozen:
            self._all_reduce(torch.zeros_like(parameter), self.group)


class OneByOne(BucketedDataParallel):
    """Right values, one message too many for the parameters of a bucket: the plan is ignored."""

    def _pack(self, order: list[int] | None) -> None:
        with mock.patch.object(data, "plan_buckets", lambda p, _, o: [[n] for n in o or range(len(p))]):
            super()._pack(order)


class SendsTwice(BucketedDataParallel):  # sends everything twice
    def _send_next(self) -> None:
        bucket = self.buckets[self._sent]
        super()._send_next()
        if bucket.work is not None:
            bucket.work.wait()
        bucket.flat /= self.world_size
        bucket.work = self._all_reduce(bucket.flat, self.group)


VALUES = [
    Unsynchronized,
    SumForMean,
    NaiveSumForMean,
    ReducedBeforeFull,
    NoBroadcast,
    OnlyParametersBroadcast,
    ZerosForUnused,
    OwnGradientForRare,
]
"""Refused by `parity`."""
TRAFFIC = [Unsynchronized, DeafToNoSync, SendsFrozen, OneByOne, SendsTwice]
"""Refused by `check_traffic`, though most of them train perfectly."""
