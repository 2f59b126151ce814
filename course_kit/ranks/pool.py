"""`run` and `Ranks`: call a function on several processes, from a notebook cell.

The processes stay between calls, so a call costs milliseconds instead of the seconds that a launcher needs. Inside the
function `torch.distributed` is ready: `dist.get_rank()` and `dist.all_reduce(x)` work at once.

    notebook                         zygote                           rank 0 … n-1
    pool.run(fn)
     ├─ packing: fn, its arguments, and news of the notebook
     ├─ worker_group
     │   └─ launch ── fork, kill ──► zygote.py: torch imported, ────► worker.py
     │             ◄─ exit codes ─── one thread; forks and reaps      ├─ listener thread: answers, notices the end
     └─ watched_call                                                  └─ main thread: fn(…), watched by announce, prints
         │   ══ run, over, where ══ wire: a socket to each rank ════►   │
         │   ◄══ entered, here, out, returned, raised ═══════════════   ╪══ gloo or NCCL ══► the other ranks
         ├─ matching: do the ranks' calls fit?
         └─ report: RankFailure

A rank announces a call before it makes the call. So the notebook knows which rank waits for which, even in a hang.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Self

from course_kit.ranks._processes import packing
from course_kit.ranks._processes.inside import backend_for
from course_kit.ranks._processes.launch import IN_RANK
from course_kit.ranks._processes.watched_call import WatchedCall
from course_kit.ranks._processes.worker_group import WorkerGroup

MAX_WORLD_SIZE = 64
"""Every rank is a process, and gloo joins every pair by a socket: 64 ranks hold 2,016 connections."""


class Ranks:
    """A group of rank processes of your own, to use as a context manager or to close by `close()`.

    Args:
        world_size: number of processes.
        backend: the backend of torch.distributed. None takes NCCL (and gloo for CPU tensors) when every rank can have
            a GPU of its own, else gloo.
        timeout_s: seconds that one call may take.
        diagnose: compare the communication calls of all ranks with each other while they run; finds wrong orders,
            shapes and dtypes, and deadlocks within a second. Switch this off when you time communication.

    Raises:
        ValueError: `world_size` or `timeout_s` makes no sense, or NCCL is wanted and there are too few GPUs.
    """

    def __init__(
        self, world_size: int = 4, backend: str | None = None, timeout_s: float = 60, diagnose: bool = True
    ) -> None:
        self.world_size = _check_world_size(world_size)
        self.timeout_s = _check_timeout(timeout_s)
        self.diagnose = diagnose
        self.backend = backend_for(self.world_size, backend)
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._workers: WorkerGroup | None = self._new_workers()

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call `fn(*args, **kwargs)` on every rank; all results, in rank order.

        `fn` and all it uses may be defined in notebook cells. Modules that it imports are read from disk by the ranks,
        and again when you edit their files. Each call begins like a fresh process: torch's default seed and dtype.

        Raises:
            RankFailure: a rank raised, died, or was not done in time; all ranks have then been replaced.
            ValueError: an argument, or a variable that `fn` uses, cannot be shipped; the message names it.
        """
        return self.call(packing.pack(fn, args, kwargs), self.timeout_s, self.diagnose)

    def call(self, packed: bytes, timeout_s: float, diagnose: bool) -> list[Any]:
        """Make a call that is packed already, with a time limit and a diagnosis of its own.

        Args:
            packed: the function and its arguments, from `packing.pack`.
            timeout_s: seconds that this call may take.
            diagnose: whether to compare the ranks' communication calls.
        """
        with self._lock:
            workers = self._standing_workers()
            call = WatchedCall(workers, timeout_s, diagnose)
            try:
                workers.send_to_all(("run", packed, workers.tracker.news(), diagnose))
                blobs = call.blobs()
            finally:  # after a KeyboardInterrupt too: workers that were left in the middle of a call are useless
                if call.leaves_group_usable:
                    workers.send_to_all(("over",))
                else:
                    self._replace(workers)
        return [packing.loads(blob) for blob in blobs]

    def _standing_workers(self) -> WorkerGroup:
        if self._owner != os.getpid():
            raise RuntimeError("these ranks belong to the process that made this one by os.fork(); make new ones here")
        if self._workers is None:
            raise ValueError("these ranks are closed: make a new ranks.Ranks(...), or use ranks.run(...)")
        with contextlib.suppress(RuntimeError):
            self._workers.wait_until_ready()
            return self._workers
        self._replace(self._workers)  # a rank was killed, or the process that ranks are forked from
        self._workers.wait_until_ready()
        return self._workers

    def _replace(self, workers: WorkerGroup) -> None:
        """Kill the workers and start the next ones, without waiting for them."""
        workers.end()
        self._workers = self._new_workers()

    def _new_workers(self) -> WorkerGroup:
        """Start workers that end with this object, or with the interpreter, at the latest."""
        workers = WorkerGroup(self.world_size, self.backend)
        weakref.finalize(self, workers.end)
        return workers

    def close(self) -> None:
        """End the processes; a second call does nothing."""
        with self._lock:
            if self._workers is not None and self._owner == os.getpid():
                self._workers.end()
            self._workers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


@functools.cache
def _shared(world_size: int, backend: str, _pid: int) -> Ranks:
    """The pool that all `run` calls of a process with this size and backend share."""
    return Ranks(world_size, backend)


def run(
    fn: Callable, /, *args: Any, world_size: int = 4, timeout_s: float = 60, diagnose: bool = True, **kwargs: Any
) -> list[Any]:
    """Call `fn(*args, **kwargs)` on `world_size` processes that share a process group; the results in rank order.

    The processes are started on the first call and stay for the next ones. `Ranks.run` says more about `fn`.

    Args:
        fn: the function; may be defined in a notebook cell.
        world_size: number of ranks.
        timeout_s: seconds after which the call is ended and reported as a hang.
        diagnose: compare the ranks' communication calls while they run (see `Ranks`); switch it off for timings.

    Raises:
        RankFailure: a rank raised, died, or was not done in time.
        ValueError: `world_size` or `timeout_s` makes no sense, or something cannot be shipped.
    """
    _check_timeout(timeout_s)
    pool = _shared(_check_world_size(world_size), backend_for(world_size), os.getpid())
    return pool.call(packing.pack(fn, args, kwargs), timeout_s, diagnose)


def _check_world_size(world_size: Any) -> int:
    """`world_size`; ValueError inside a rank, and unless it is a whole number from 1 to `MAX_WORLD_SIZE`."""
    if IN_RANK in os.environ:
        raise ValueError("this function already runs in a rank: use torch.distributed here, and ranks.run outside")
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise ValueError(
            f"world_size={world_size!r} is a {type(world_size).__name__}: give a whole number of ranks (4)"
        )
    if world_size < 1:
        raise ValueError(f"world_size={world_size}: there must be at least 1 rank to call the function on")
    if world_size > MAX_WORLD_SIZE:
        pairs = world_size * (world_size - 1) // 2
        raise ValueError(
            f"world_size={world_size}: every rank is a process on this machine, and each of the {pairs:,} pairs holds "
            f"a connection; at most {MAX_WORLD_SIZE} are started. What needs more ranks than that is seen at 4 or 8 too"
        )
    return world_size


def _check_timeout(timeout_s: Any) -> float:
    """`timeout_s` as a float; ValueError unless it is a positive number of seconds."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s={timeout_s!r}: give the seconds that a call may take, a number above 0 (60)")
    return float(timeout_s)
