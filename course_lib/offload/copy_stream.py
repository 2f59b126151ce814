"""A copy stream between two memories: what is sent over it arrives one after the other, while the sender computes.

A GPU has two copy engines, one to main memory and one back, that work beside its kernels. A copy stream is one of
them: a thread with a queue. Without a GPU both of its ends are main memory, and the copy is nearly free; so a copy
stream can be told its bandwidth, and then no tensor arrives sooner than it would over such a link. The stream's thread
sleeps meanwhile, and costs the processor nothing. (An `offload.disk.Disk` can be told a bandwidth as well.)
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
    """A road with a bandwidth, for those who would be faster: what takes it arrives one after the other.

    Args:
        bytes_per_s: nothing is faster than this; None for a road that holds nobody up.

    Raises:
        ValueError: a bandwidth that is not positive.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ValueError(f"a road carries more than 0 bytes a second; bytes_per_s={bytes_per_s}")
        self.bytes_per_s = bytes_per_s
        self._free_at, self._lock = 0.0, threading.Lock()

    def wait(self, n_bytes: int, asked_at: float) -> None:
        """Sleep until so many bytes are over, which were to be carried from `asked_at` on (as `perf_counter` says)."""
        if self.bytes_per_s is None:
            return
        with self._lock:
            start = max(asked_at, self._free_at)  # not now: if somebody has slept too long, that is made up for
            self._free_at = start + n_bytes / self.bytes_per_s
            time.sleep(max(0.0, self._free_at - time.perf_counter()))


class CopyStream:
    """Copies in the order in which they were asked for, behind the caller's back.

    Args:
        bytes_per_s: no copy is faster than this; None for as fast as the machine copies.

    Attributes:
        carried: bytes that have arrived so far.

    Raises:
        ValueError: a bandwidth that is not positive.
    """

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self.carried, self._pace = Bytes(0), BandwidthLimit(bytes_per_s)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stream")

    def send(self, source: Tensor, into: Tensor, add: bool = False) -> Future[None]:
        """Begin a copy, and do not wait for it. What is paid for are the bytes of `source`.

        Args:
            source: which must not change until it has arrived.
            into: of the same shape, in the other memory; in another precision, it is rounded there.
            add: to what lies there already, instead of in its place.

        Returns:
            Done when it has arrived; its `result()` waits, and raises what went wrong.
        """
        ready = torch.cuda.current_stream().record_event() if source.is_cuda or into.is_cuda else None
        return self._worker.submit(self._carry, source, into, add, ready, time.perf_counter())

    def _carry(self, source: Tensor, into: Tensor, add: bool, ready: Any, asked_at: float) -> None:
        with torch.no_grad():
            if ready is not None:
                ready.synchronize()  # this thread waits for the kernels that make `source`; the sender does not
            there = source.to(into.device)
            into.add_(there) if add else into.copy_(there)
        self.carried += source.nbytes
        self._pace.wait(source.nbytes, asked_at)
