"""An untrusted Jupyter kernel, and the little of Jupyter's protocol that grading needs.

The grader listens to one channel only, the replies. A kernel's prints go over another one, to which the grader is not
connected: a flood of prints never reaches it. Nothing that a kernel says is trusted to be short, true or there at all;
everything has a time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self

import zmq
from jupyter_client.session import Session

from course_kit.own_time import OwnTime, cannot_say, stretched
from course_tools.grading.sandbox import mounts
from course_tools.grading.sandbox.limits import MIB, Limits
from course_tools.grading.sandbox.mounts import short_folder
from course_tools.grading.sandbox.processes import NONE, Sandbox

DIED, TIMEOUT, MEMORY, PROCESSES, FILES, WALL = "died", "timeout", "memory", "processes", "files", "wall"
_CHANNELS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}
"""The sockets of a kernel; with this transport a port is the end of a file's name."""
_LARGEST_REPLY = 16 * MIB
_GRACE_S = 3.0
_LOOK_S = 0.2
_SHARED_BYTES = 16 * MIB
"""Limit on the size of the shared folder, which should hold sockets and one small file."""


class KernelEnded(Exception):
    """The kernel is gone; `reason` is one of the words above."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TooBusyError(Exception):
    """Other programs had the cores for so long that a limit which was reached says nothing about the submission."""


@dataclass(frozen=True)
class Reply:
    """The outcome of a cell: no `error`, or the name of the exception and its text; `late` after an interrupt."""

    error: str = ""
    text: str = ""
    late: bool = False
    seconds: float = 0.0


@dataclass
class Budget:
    """The seconds of a whole submission, over all of its kernels; those in which others had the cores do not count."""

    wall_s: float
    lost_s: float = 0.0
    start: float = field(default_factory=time.monotonic)

    @property
    def deadline(self) -> float:
        """The `time.monotonic()` at which the submission's time ends, by the seconds lost so far."""
        return self.start + stretched(self.wall_s, self.lost_s)

    @property
    def cannot_say(self) -> bool:
        """Whether so much was lost to others that the end of the time proves nothing."""
        return cannot_say(self.wall_s, self.lost_s)


class Kernel:
    """A sandboxed kernel, started when made; a context manager that ends it.

    Args:
        limits: the limits of the submission.
        isolation: see `sandbox.processes`.
        budget: the time of the whole submission.
    """

    def __init__(self, limits: Limits, isolation: str, budget: Budget) -> None:
        self._limits, self._budget = limits, budget
        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(short_folder())
            inside = self._folder if isolation == NONE else mounts.KERNEL_FOLDER
            key = secrets.token_hex(16)
            about = {"transport": "ipc", "ip": f"{inside}/k", "key": key, "signature_scheme": "hmac-sha256"}
            (self._folder / "kernel.json").write_text(json.dumps(about | _CHANNELS), "ascii")
            self._session = Session(key=key.encode())
            self._socket = zmq.Context.instance().socket(zmq.DEALER)
            stack.callback(self._socket.close, 0)
            self._socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST_REPLY)
            self._socket.setsockopt(zmq.RCVHWM, 8)
            self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
            self._socket.connect(f"ipc://{self._folder}/k-{_CHANNELS['shell_port']}")
            arguments = ["-f", f"{inside}/kernel.json", "--HistoryManager.enabled=False"]
            arguments += ["--IPKernelApp.capture_fd_output=False"]
            self._sandbox = Sandbox(self._folder, arguments, limits, isolation)
            stack.callback(self._sandbox.kill)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process and remove the files."""
        self._stack.close()

    def run(self, source: str, *, silent: bool = False, limit_s: float | None = None) -> Reply:
        """Run one cell.

        Args:
            source: the cell's text.
            silent: leave the cell out of the history, and call no hooks that answers may have set.
            limit_s: seconds that the cell may take; default: those of the limits.

        Raises:
            KernelEnded: the kernel ended by itself, by a limit, or because the cell did not stop when interrupted.
            TooBusyError: a limit was reached, and the machine is to blame.
        """
        content = {"code": source, "silent": silent, "store_history": not silent, "user_expressions": {}}
        content |= {"allow_stdin": False, "stop_on_error": False}
        message = self._session.msg("execute_request", content)
        start, limit_s = time.monotonic(), limit_s or self._limits.cell_s
        own = OwnTime(lambda: [process.pid for process in self._sandbox.processes()])
        self._session.send(self._socket, message)
        reply = self._wait(message["header"]["msg_id"], own, limit_s)
        late = reply is None
        if reply is None:
            self._refuse_if(own.cannot_say(limit_s))
            self._sandbox.interrupt()
            reply = self._wait(message["header"]["msg_id"], OwnTime(list), _GRACE_S)
        if reply is None:
            self._end(TIMEOUT)
        error = "" if reply.get("status") == "ok" else str(reply.get("ename", reply.get("status")))
        return Reply(error, str(reply.get("evalue", "")) if error else "", late, time.monotonic() - start)

    def _wait(self, request: str, own: OwnTime, limit_s: float) -> dict | None:
        """The content of the reply to `request`; None when there is none in time."""
        look, before_s = time.monotonic() + _LOOK_S, self._budget.lost_s
        while (left_s := own.left_s(limit_s)) > 0:
            now = time.monotonic()
            if now >= self._budget.deadline:
                self._refuse_if(self._budget.cannot_say)
                self._end(WALL)
            patience_s = min(left_s, look - now, self._budget.deadline - now)
            arrived = self._socket.poll(max(1, int(1000 * patience_s)))
            if arrived and (content := self._receive(request)) is not None:
                return content
            if time.monotonic() >= look:
                own.look()
                self._budget.lost_s = before_s + own.lost_s
                self._look()
                look = time.monotonic() + _LOOK_S
        return None

    def _receive(self, request: str) -> dict | None:
        """Receive one message; return its content if it is the reply to `request`, else None."""
        try:
            _, parts = self._session.feed_identities(self._socket.recv_multipart(zmq.NOBLOCK))
            message = self._session.deserialize(parts)
        except Exception:  # nothing that a kernel says is trusted to be a message
            return None
        content, parent = message.get("content"), message.get("parent_header")
        ours = isinstance(parent, dict) and parent.get("msg_id") == request
        return content if ours and isinstance(content, dict) else None

    def _look(self) -> None:
        """End the kernel if it is dead or uses too much."""
        if not self._sandbox.alive:
            self._end(DIED)
        if reason := self._sandbox.excess():
            self._end(reason)
        allowed = self._limits.memory_bytes if self._sandbox.isolation == NONE else _SHARED_BYTES
        if _size(self._folder) > allowed:
            self._end(FILES)

    def _refuse_if(self, cannot_say: bool) -> None:
        if cannot_say:
            self.close()
            raise TooBusyError

    def _end(self, reason: str) -> NoReturn:
        self.close()
        raise KernelEnded(reason)


def _size(folder: Path) -> int:
    """Bytes on disk of all files in a folder that another process writes to at the same time."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total
