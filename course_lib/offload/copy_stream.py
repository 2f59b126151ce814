"""A copy stream between two memories: tensors arrive one after the other, while the sender computes.

A GPU has two copy engines beside its kernels, one to main memory and one back. A copy stream stands for one of them: a
thread with a queue. Without a GPU both of its ends are main memory, and a copy is nearly free. So a copy stream takes a
bandwidth, and no tensor arrives sooner than over such a link; meanwhile the thread sleeps, and leaves the processor to
others. (`offload.disk.Disk` takes a bandwidth, too.)
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
    """A limit on bytes per second for transfers that would be faster; they pass one after the other.

    Args:
        bytes_per_s: the limit; None for no limit.

    Raises:
        ValueError: a bandwidth that is not positive.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ValueError(f"a road carries more than 0 bytes a second; bytes_per_s={bytes_per_s}")
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
    """Copies by a thread of its own, in the order of the requests.

    Args:
        bytes_per_s: the bandwidth; None for the machine's own.

    Attributes:
        carried: bytes that have arrived so far.

    Raises:
        ValueError: a bandwidth that is not positive.
    """

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self.carried, self._pace = Bytes(0), BandwidthLimit(bytes_per_s)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stream")

    def send(self, source: Tensor, into: Tensor, add: bool = False) -> Future[None]:
        """Start a copy, and do not wait for it. The bytes of `source` travel; `into` rounds to its own dtype.

        Args:
            source: a tensor that must not change until the copy is done.
            into: a tensor of the same shape in the other memory.
            add: add to the values in `into` instead of replacing them.

        Returns:
            A future that is done when the copy is; `result()` waits, and raises the copy's error.
        """
        ready = torch.cuda.current_stream().record_event() if source.is_cuda or into.is_cuda else None
        return self._worker.submit(self._carry, source, into, add, ready, time.perf_counter())

    def _carry(self, source: Tensor, into: Tensor, add: bool, ready: Any, asked_at: float) -> None:
        with torch.no_grad():
            if ready is not None:
                ready.synchronize()  # this thread waits for the kernels that make `source`; the sender does not
            arrived = source.to(into.device)  # in the dtype of `source`: rounding comes after the link
            into.add_(arrived) if add else into.copy_(arrived)
        self.carried += source.nbytes
        self._pace.wait(source.nbytes, asked_at)
