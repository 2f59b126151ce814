"""A process tree that can be watched and ended as a whole, kept apart from this machine where bubblewrap works.

Two ways, the better one that works here:

- `bubblewrap`: its own file tree (see `mounts`), processes, network (only the loopback), and no privileges.
- `none`: a plain process (macOS, Windows, a Linux without bubblewrap, most containers). Its children are found and
  killed, its memory is watched, but it can read all that the grader can read and use the network. Results say so: NOT
  ISOLATED.

Where security is concerned, a tool that many people look at beats our own: there is no third way. In both, a kernel is
forked from a process that has imported torch, IPython and the course, where the system can do that (see `zygote`).

Memory is watched from outside, by sampling, and that is on purpose. The system's limit on address space cannot be
used with torch, which reserves far more than it touches; the limit on data (RLIMIT_DATA, set by `launcher`) counts
single processes; cgroups count right, but only root and some systemd machines may make one. So every 0.2 s the sum
over all processes is taken: of RSS, which counts shared pages once for each process and so is never too low, and only
if that is too much, of PSS, which counts them once. Files in memory (/tmp, /dev/shm) are limited by their mounts.
Memory of files that are neither mapped nor mounted (memfd) remains uncounted. The system's own out-of-memory handler
then ends the sandbox first, because `launcher` tells it so.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from course_tools.grading.sandbox import forks, mounts
from course_tools.grading.sandbox.bubblewrap import bubblewrap_command, close_pipes, empty_sandbox
from course_tools.grading.sandbox.limits import Limits
from course_tools.grading.sandbox.mounts import short_folder

BUBBLEWRAP, NONE = "bubblewrap", "none"
PLAIN = "COURSE_GRADING_PLAIN"
"""Environment variable: if it is set, submissions run as plain processes even where bubblewrap works."""
MARK = "COURSE_GRADING_SANDBOX"
"""Environment variable by which the processes of an unisolated kernel are found, whatever their parent is by then."""
_ALL_USERS = 65536
_SWEEPS = 20
"""Number of looks for processes that others started while those were being ended."""
_RUNNING: set[Sandbox] = set()
_STOPPED = threading.Event()


class Stopped(RuntimeError):
    """The batch was interrupted: no more sandboxes are started."""


class Sandbox:
    """A running kernel and all its descendants.

    Args:
        shared: folder of the grader that becomes the kernel's connection folder; nothing secret may be in it.
        arguments: the kernel's command line.
        limits: the limits of the submission.
        isolation: one of the two ways above.
    """

    def __init__(self, shared: Path, arguments: list[str], limits: Limits, isolation: str) -> None:
        self.isolation = isolation
        self._mark = secrets.token_hex(8)
        self._limits = limits
        own_limits = {"data": limits.memory_bytes, "file": limits.file_bytes, "core": 0}
        if isolation != NONE:  # elsewhere the system would count the grader's own processes, too
            own_limits["threads"] = limits.threads
            if _is_root():
                own_limits["uid"] = _ALL_USERS + secrets.randbelow(2**30)
                _give(shared, own_limits["uid"])
        _refuse_when_stopped()
        self._environment, self._folder = mounts.environment() | {MARK: self._mark}, mounts.WORK_FOLDER
        if isolation == NONE:
            self._environment |= mounts.environment(f"{shared}/home", f"{shared}/tmp") | _needed_by_system()
            self._folder = f"{shared}/lab"
            Path(self._folder).mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self._fork: forks.Forked | None = None
        self._own: set[int] = set()
        self._start(arguments, own_limits, shared)
        _RUNNING.add(self)
        try:
            _refuse_when_stopped()  # `stop` may not have seen this one
        except Stopped:
            self.kill()
            raise

    def _start(self, arguments: list[str], own_limits: dict[str, int], shared: Path) -> None:
        """Fork the kernel where that works, else start a Python of its own."""
        wall = bubblewrap_command(shared, self._limits.memory_bytes) if self.isolation == BUBBLEWRAP else []
        for last in (False, True):
            if not forks.usable():
                break
            zygote = forks.the_zygote()
            try:
                self._fork_kernel(zygote, arguments, own_limits, wall)
                return
            except (forks.Refused, OSError, ValueError, psutil.Error) as problem:
                self.kill()
                if last or not zygote.ended(1):  # one that somebody killed is replaced, once
                    forks.refuse(str(problem))
        kernel = [sys.executable, "-m", "course_tools.grading.sandbox.launcher", json.dumps(own_limits), *arguments]
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(
            wall + kernel,
            env=self._environment,
            cwd="/" if wall else self._folder,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
        )
        self._root = psutil.Process(self._process.pid)

    def _fork_kernel(
        self, zygote: forks.Zygote, arguments: list[str], own_limits: dict[str, int], wall: list[str]
    ) -> None:
        """Fork the kernel into an empty sandbox that bubblewrap makes, or into this machine."""
        namespaces: list[int] = []
        if wall:
            empty = empty_sandbox(wall, self._environment)
            self._process, self._own, namespaces = empty.process, empty.own, empty.namespaces
            self._root = psutil.Process(empty.process.pid)
        request = {"isolated": bool(wall), "folder": self._folder, "environment": self._environment}
        try:
            self._fork = zygote.fork(request | {"limits": own_limits, "arguments": arguments}, namespaces)
        finally:
            for fd in namespaces:
                os.close(fd)

    @property
    def forked(self) -> bool:
        """Whether the kernel was forked from a process that had imported everything."""
        return self._fork is not None

    @property
    def alive(self) -> bool:
        """Whether the kernel still runs."""
        if self._fork:
            return self._fork.alive
        return self._process is not None and self._process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """Every process in the sandbox, without bubblewrap's own."""
        if self._fork is None and self.isolation == NONE:
            return [self._root, *_below(self._root)]
        found = _below(self._fork.keeper) if self._fork else []
        if self._process:
            found += (process for process in _below(self._root) if process.pid not in self._own)
        return found if self._fork else [process for process in found if _name(process) != "bwrap"]

    def excess(self) -> str:
        """`memory` or `processes` when there are more than the limits allow, else nothing."""
        processes = self.processes()
        if len(processes) > self._limits.processes:
            return "processes"
        most = self._limits.memory_bytes
        too_much = sum(map(_resident, processes)) > most and sum(map(_proportional, processes)) > most
        return "memory" if too_much else ""

    def interrupt(self) -> None:
        """Send the kernel the signal of Ctrl-C."""
        kernels = [self._fork.kernel] if self._fork else sorted(self.processes(), key=_started)[:1]
        for kernel in kernels:
            with contextlib.suppress(psutil.Error):
                kernel.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End every process. With bubblewrap the system does: all end with the first one of their namespace."""
        if self.isolation == NONE:
            _end(self.processes() if self._fork or self._process else [])
        elif self._process:  # bubblewrap itself then ends, and its processes' time is counted as our children's
            _end(_below(self._root)[:1] or [self._root])
        if self._process:
            close_pipes(self._process)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._fork:
            if not self._fork.wait(5):
                _end([self._fork.keeper])
            self._fork.close()
        if self.isolation == NONE:
            for _ in range(_SWEEPS):
                if not _end(list(_marked(self._mark))):
                    break
        _RUNNING.discard(self)


def _end(processes: list[psutil.Process]) -> bool:
    """Kill these processes; return whether there was any."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return bool(processes)


def _refuse_when_stopped() -> None:
    if _STOPPED.is_set():
        raise Stopped("the batch was interrupted")


def allow() -> None:
    """Let sandboxes start (again)."""
    _STOPPED.clear()


def stop() -> None:
    """End every sandbox that this process started and let no other start; for Ctrl-C."""
    _STOPPED.set()
    for sandbox in list(_RUNNING):
        sandbox.kill()


def best_isolation() -> str:
    """The way in which submissions run on this machine."""
    return BUBBLEWRAP if not os.environ.get(PLAIN) and bubblewrap_works() else NONE


@functools.cache
def bubblewrap_works() -> bool:
    """Whether bubblewrap is installed and may do its work here; tried once, with a small Python."""
    if sys.platform != "linux" or not shutil.which("bwrap"):
        return False
    test = "import os, sys; uid = int(sys.argv[1]); uid and os.setuid(uid); import course_tools, zmq, ipykernel"
    with short_folder() as shared, contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [*bubblewrap_command(shared, 2**26), sys.executable, "-c", test]
        command += [str(_ALL_USERS if _is_root() else 0)]
        return subprocess.run(command, env=mounts.environment(), capture_output=True, timeout=60).returncode == 0
    return False


def _give(folder: Path, uid: int) -> None:
    for path in (folder, *folder.iterdir()):
        os.chown(path, uid, uid)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _needed_by_system() -> dict[str, str]:
    """Variables without which Windows starts nothing."""
    return {name: os.environ[name] for name in ("SYSTEMROOT", "TEMP", "TMP") if name in os.environ and os.name == "nt"}


def _below(process: psutil.Process) -> list[psutil.Process]:
    """All descendants."""
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _started(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.Error:
        return float("inf")


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def _proportional(process: psutil.Process) -> int:
    try:
        return getattr(process.memory_full_info(), "pss", 0) or _resident(process)
    except psutil.Error:
        return _resident(process)


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.pid != os.getpid():
                yield process
