"""Kernels that are forked from one process, the grader's side: the zygote, a sandbox to enter, a running kernel.

Where this does not work (other systems, a Linux that forbids it) `start` gives None, and `processes` starts a program.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import psutil

from course_tools.grading.sandbox import mounts

FRESH = "COURSE_GRADING_FRESH"
"""Environment variable: if it is set, each kernel is a Python of its own even where kernels can be forked."""
_PATIENCE_S = 600.0
_LOCK = threading.Lock()
_ZYGOTES: list[Zygote] = []
"""The one of this process, if there is one; forks of this process find its in there, too."""
_REFUSED: list[str] = []
"""The reason why kernels are not forked here, once there is one."""


class Refused(RuntimeError):
    """A kernel cannot be forked here."""


class Zygote:
    """The process that kernels are forked from; it ends with this one."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program, nowhere = _interpreter(), subprocess.DEVNULL
        command = [
            sys.executable,
            "-P",
            "-m",
            "course_tools.grading.sandbox.zygote",
            str(theirs.fileno()),
            str(program),
        ]
        with theirs, open(program, "rb"):
            self._process = subprocess.Popen(
                command,
                executable=f"/proc/self/fd/{program}",
                env=mounts.environment(),
                cwd="/",
                stdin=nowhere,
                stdout=nowhere,
                stderr=nowhere,
                start_new_session=True,
                pass_fds=[theirs.fileno(), program],
            )
        self.pid = self._process.pid
        atexit.register(self.close)

    def ended(self, patience_s: float) -> bool:
        """Wait for its end; return whether it came."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        return not self.alive

    @property
    def alive(self) -> bool:
        """Whether it runs and is this process's own."""
        return self.owner == os.getpid() and self._process.poll() is None

    def fork(self, request: dict[str, Any], namespaces: list[int]) -> Forked:
        """Fork a kernel, which has entered its sandbox when this returns.

        Raises:
            Refused: it did not work; the text says why.
        """
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(line.close)
            try:
                message = json.dumps(request).encode()
                socket.send_fds(self._control, [message], [theirs.fileno(), *namespaces])
            except OSError as problem:
                raise Refused(str(problem)) from None
            theirs.close()
            said = self._said(line)
            stack.pop_all()
        return Forked(line, psutil.Process(said))

    def _said(self, line: socket.socket) -> int:
        """Wait until the kernel is ready; return its pid."""
        pid, ready, end = 0, False, time.monotonic() + _PATIENCE_S
        while not (pid and ready):
            if not select.select([line], [], [], 0.2)[0]:
                if time.monotonic() > end:
                    raise Refused("no answer")
                continue
            word, _, rest = line.recv(1000).decode("utf-8", "replace").partition(" ")
            if word not in ("pid", "ready"):
                raise Refused(rest or "it ended")
            pid, ready = int(rest) if word == "pid" else pid, ready or word == "ready"
        return pid

    def close(self) -> None:
        """End the zygote and every kernel that it forked."""
        if self.owner != os.getpid():
            return
        atexit.unregister(self.close)
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Forked:
    """A kernel that was forked. The line's other end is open as long as the kernel's keeper lives."""

    def __init__(self, line: socket.socket, kernel: psutil.Process) -> None:
        self._line, self.kernel = line, kernel
        self.keeper = psutil.Process(kernel.ppid())

    @property
    def alive(self) -> bool:
        """Whether the kernel runs, or what it left is still being ended."""
        return not self.wait(0)

    def wait(self, patience_s: float) -> bool:
        """Wait for its end; return whether it came."""
        end = time.monotonic() + patience_s
        try:
            while select.select([self._line], [], [], max(0.0, end - time.monotonic()))[0]:
                if not self._line.recv(1000):
                    return True
        except (OSError, ValueError):  # closed
            return True
        return False

    def close(self) -> None:
        """Close the line, when the kernel has ended; so does whoever else asks for its end at the same time."""
        self._line.close()


def _interpreter() -> int:
    """A copy of Python's program in memory that nobody can change.

    A forked kernel finds the program that it runs as /proc/self/exe, and not by way of the sandbox, where files are
    read-only: a user who may write to the file itself could do so from inside.
    """
    import fcntl

    copy = os.memfd_create("python", os.MFD_ALLOW_SEALING)
    with open(sys.executable, "rb") as source, open(copy, "wb", closefd=False) as target:
        shutil.copyfileobj(source, target)
    fcntl.fcntl(
        copy, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    )
    return copy


def usable() -> bool:
    """Whether kernels are forked here, as far as is known."""
    return sys.platform == "linux" and not os.environ.get(FRESH) and not _REFUSED


def the_zygote() -> Zygote:
    """The zygote of this process, started if there is none or it has ended."""
    with _LOCK:
        if not (_ZYGOTES and _ZYGOTES[0].alive):
            _ZYGOTES[:] = [Zygote()]
        return _ZYGOTES[0]


def refuse(reason: str) -> None:
    """Fork no more kernels in this process."""
    _REFUSED.append(reason)
