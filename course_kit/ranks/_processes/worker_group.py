"""The processes of one process group, from their start to their end. A group is never repaired, only replaced.

A process group in which one operation failed cannot be used again, and a rank that is blocked in one cannot be freed.
So after any failure the whole group is killed and a new one is started at once, in the background, while the reader
reads the report.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from torch._C._distributed_c10d import TCPStore

from course_kit.ranks._processes.launch import launcher
from course_kit.ranks._processes.packing import NotebookStateTracker
from course_kit.ranks._processes.prints import Log
from course_kit.ranks._processes.wire import Channel, encode

_START_S = 60.0
_numbers = itertools.count(1)
_making_store = threading.Lock()


class WorkerGroup:
    """`world_size` processes that share a process group; the constructor returns before they are ready."""

    def __init__(self, world_size: int, backend: str) -> None:
        self.number = next(_numbers)
        self._owner = os.getpid()
        self._ended = False
        self.world_size = world_size
        self.launcher = launcher()
        self.tracker = NotebookStateTracker()
        self.logs = [Log(tempfile.TemporaryFile()) for _ in range(world_size)]  # noqa: SIM115
        self.channels: list[Channel] = []
        self.pids: list[int] = [0] * world_size  # 0: not ready yet
        self._selector = selectors.DefaultSelector()
        for rank, log in enumerate(self.logs):
            channel = Channel(self.launcher.start(self.number, rank, log.file))
            self.channels.append(channel)
            self._selector.register(channel, selectors.EVENT_READ, rank)
        with _making_store:  # two threads that make one each would lose the first, and its ranks could not meet
            port = _store(os.getpid()).port
        for rank, channel in enumerate(self.channels):
            channel.send(("start", rank, world_size, backend, port, self.number))

    def wait_until_ready(self) -> None:
        """Wait until every rank has joined the group; between two later calls, see whether every one is still there.

        Raises:
            RuntimeError: a rank ended, or took longer than a minute, or the whole group was ended.
        """
        if self._ended:  # an interrupt came between its end and the start of the next group
            raise RuntimeError("these ranks were ended")
        end = time.monotonic() + _START_S
        while True:
            for rank, message in self.messages(1.0 if 0 in self.pids else 0.0):
                if message[0] == "gone":
                    raise RuntimeError(f"rank {rank} could not start:\n{self.logs[rank].news()}")
                if message[0] == "ready":
                    self.pids[rank] = message[1]
                    self.logs[rank].news()  # the noise of starting up
            if 0 not in self.pids:
                return
            if time.monotonic() > end:
                missing = [rank for rank, pid in enumerate(self.pids) if not pid]
                raise RuntimeError(f"ranks {missing} were not ready after {_START_S:.0f} s")

    def send_to_all(self, message: tuple[Any, ...]) -> None:
        """Send one message to every rank."""
        frame = encode(message)
        for channel in self.channels:
            with contextlib.suppress(OSError):  # that rank is gone; `messages` will say so
                channel.send_encoded(frame)

    def messages(self, wait_s: float) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """The messages that arrive within `wait_s`, as (rank, message); `("gone",)` once for a rank that ended."""
        for key, _ in self._selector.select(wait_s):
            try:
                received = self.channels[key.data].receive()
            except (EOFError, ConnectionError):
                self._selector.unregister(key.fileobj)
                received = [("gone",)]
            for message in received:
                yield key.data, message

    def end(self) -> None:
        """Kill every process of the group; do nothing the second time, or in a fork of the notebook's process."""
        if os.getpid() != self._owner or self._ended:
            return
        self._ended = True
        self.launcher.kill(self.number)
        self._selector.close()
        for channel in self.channels:
            channel.close()
        for log in self.logs:
            log.file.close()


@functools.cache
def _store(_pid: int) -> TCPStore:
    """The store of a process, through which the ranks of each of its groups find each other.

    The store listens on the loopback interface only, on a port that the system picks: two kernels never collide.
    """
    if os.name == "nt":
        return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())
