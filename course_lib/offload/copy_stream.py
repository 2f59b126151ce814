"""A copy stream between two memories: tensors arrive one after the other, while the sender computes.

A GPU has copy engines beside its kernels. A copy stream stands for one of them: a thread with a queue. Without a GPU
both of its ends are main memory, and a copy is nearly free. So a copy stream takes a bandwidth, and no tensor arrives
sooner than over such a link; meanwhile the thread sleeps, and leaves the processor to others. (`offload.disk.Disk`
takes a bandwidth, too.)

On a GPU two things let a copy run beside kernels: a CUDA stream of its own, since work on one stream runs in order; and
page-locked ("pinned") memory at the other end, which the operating system may not move while the engine reads it. A
copy from or to ordinary memory goes through a small page-locked buffer of the driver, and its caller waits.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from course_kit.units import Bytes


class BandwidthLimit:
    """A limit on bytes per second (None: no limit) for transfers that would be faster; they pass one after the other.

    Raises:
        ValueError: a bandwidth that is not positive.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ValueError(f"a limit is more than 0 bytes a second; bytes_per_s={bytes_per_s}")
        self.bytes_per_s = bytes_per_s
        self._free_at, self._lock = 0.0, threading.Lock()

    def wait(self, n_bytes: int, asked_at: float) -> None:
        """Sleep until a transfer of so many bytes is over that was requested at `asked_at` (on `perf_counter`)."""
        if self.bytes_per_s is None:
            return
        with self._lock:
            start = max(asked_at, self._free_at)  # not now: a sleep that was too long shortens the next one
            self._free_at = start + n_bytes / self.bytes_per_s
            time.sleep(max(0.0, self._free_at - time.perf_counter()))


class CopyStream:
    """Copies by a thread of its own, in the order of the requests, at `bytes_per_s` (None: the machine's speed).

    Attributes:
        carried: bytes that have arrived so far.

    Raises:
        ValueError: a bandwidth that is not positive.
    """

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self.carried, self._limit = Bytes(0), BandwidthLimit(bytes_per_s)
        self._engine: torch.cuda.Stream | None = None  # made with the first tensor that lies on a GPU
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stream")

    def send(self, source: Tensor, into: Tensor, add: bool = False) -> Future[None]:
        """Start a copy, and return its future; `result()` waits, and raises the copy's error.

        The bytes of `source` travel; `into` rounds to its own dtype.

        Args:
            source: a tensor that must not change until the copy is done.
            into: a tensor of the same shape in the other memory; one of both is main memory.
            add: add to the values in `into` instead of replacing them.
        """
        gpu = next((tensor.device for tensor in (source, into) if tensor.is_cuda), None)
        ready = None if gpu is None else torch.cuda.current_stream(gpu).record_event()
        return self._worker.submit(self._carry, source, into, add, ready, gpu, time.perf_counter())

    def _carry(
        self, source: Tensor, into: Tensor, add: bool, ready: Any, gpu: torch.device | None, asked_at: float
    ) -> None:
        with torch.no_grad():
            if gpu is None:
                _put(source, into, add)
            else:
                self._carry_by_engine(source, into, add, ready, gpu)
        self.carried += source.nbytes
        self._limit.wait(source.nbytes, asked_at)

    def _carry_by_engine(self, source: Tensor, into: Tensor, add: bool, ready: Any, gpu: torch.device) -> None:
        """Copy on a stream of its own through page-locked memory, in the dtype of `source`; rounding comes after."""
        self._engine = self._engine or torch.cuda.Stream(gpu)
        with torch.cuda.stream(self._engine):
            self._engine.wait_event(ready)  # the engine waits for the kernels that make `source`; the sender does not
            if into.is_cuda:
                _put(source.pin_memory().to(gpu, non_blocking=True), into, add)
                arrived = None
            else:
                arrived = torch.empty_like(source, device="cpu", pin_memory=True).copy_(source, non_blocking=True)
        self._engine.synchronize()  # this thread waits until the bytes are there
        if arrived is not None:
            _put(arrived, into, add)


def _put(arrived: Tensor, into: Tensor, add: bool) -> None:
    into.add_(arrived) if add else into.copy_(arrived)
