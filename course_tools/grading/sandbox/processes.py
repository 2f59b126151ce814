"""A process tree that can be watched and ended as a whole, kept apart from this machine where bubblewrap works.

Two ways, the better one that works here:

- `bubblewrap`: its own file tree (see `mounts`), processes, network (only the loopback), and no privileges.
- `none`: a plain process (macOS, Windows, a Linux without bubblewrap, most containers). Its children are found and
  killed, its memory is watched, but it can read all that the grader can read and use the network. Results say so: NOT
  ISOLATED.

Where security is concerned, a tool that many people look at beats our own: there is no third way.

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

from course_tools.grading.sandbox import mounts
from course_tools.grading.sandbox.limits import Limits

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
        kernel = [sys.executable, "-m", "course_tools.grading.sandbox.launcher", json.dumps(own_limits), *arguments]
        self._process = self._start(kernel, shared)
        self._root = psutil.Process(self._process.pid)
        _RUNNING.add(self)
        try:
            _refuse_when_stopped()  # `stop` may not have seen this one
        except Stopped:
            self.kill()
            raise

    def _start(self, kernel: list[str], shared: Path) -> subprocess.Popen[bytes]:
        environment, folder = mounts.environment() | {MARK: self._mark}, "/"
        if self.isolation == BUBBLEWRAP:
            kernel = bubblewrap_command(shared, self._limits.memory_bytes) + kernel
        else:
            environment |= mounts.environment(f"{shared}/home", f"{shared}/tmp") | _needed_by_system()
            folder = f"{shared}/lab"
            Path(folder).mkdir()
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(
            kernel, env=environment, cwd=folder, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
        )

    @property
    def alive(self) -> bool:
        """Whether the kernel still runs."""
        return self._process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """Every process in the sandbox, without bubblewrap's own."""
        try:
            found = self._root.children(recursive=True)
        except psutil.Error:
            return []
        if self.isolation == NONE:
            return [self._root, *found]
        return [process for process in found if _name(process) != "bwrap"]

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
        for process in sorted(self.processes(), key=_started)[:1]:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End every process. With bubblewrap the system does: all end with the first one of their namespace."""
        leftover = [self._root]
        with contextlib.suppress(psutil.Error):
            if self.isolation == NONE:
                leftover = self.processes()
            else:  # bubblewrap itself then ends, and the time that its processes took is counted as our children's
                leftover = self._root.children(recursive=True)[:1] or leftover
        _end(leftover)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
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


def bubblewrap_command(shared: Path, memory_bytes: int) -> list[str]:
    """The command line in front of the kernel's.

    Everything that can be written to is in memory and has a size, except the connection folder.
    """
    users = [] if _is_root() else ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    command = [shutil.which("bwrap") or "bwrap", *users, "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    command += ["--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session"]
    folders = [*mounts.read_only(), *mounts.root_folders()]
    caches = [(path, Path(mounts.HOME, "matplotlib", path.name)) for path in mounts.font_caches()]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/dev/shm", "/tmp"):  # first: Python itself may be somewhere below /tmp
        command += ["--perms", "1777", "--size", str(memory_bytes), "--tmpfs", folder]
    for parent in _parents([*folders, Path(mounts.KERNEL_FOLDER)]):
        command += ["--perms", "0755", "--dir", str(parent)]  # bubblewrap itself makes them unreadable to others
    for folder in folders:
        command += ["--ro-bind", str(folder), str(folder)]
    for target, link in mounts.root_links():
        command += ["--symlink", target, str(link)]
    for folder in mounts.masked():
        command += ["--tmpfs", str(folder)]
    for folder in (mounts.WORK_FOLDER, mounts.HOME, f"{mounts.HOME}/matplotlib"):
        command += ["--perms", "1777", "--dir", folder]
    for source, target in caches:
        command += ["--ro-bind", str(source), str(target)]
    command += ["--bind", str(shared), mounts.KERNEL_FOLDER, "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--chdir", mounts.WORK_FOLDER, "--"]


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


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A private temporary folder with a short path: the path of a socket may have about 100 characters."""
    base = Path("/tmp") if Path("/tmp").is_dir() else Path(os.environ.get("TEMP", "."))
    path = base / f"course-{secrets.token_hex(4)}"
    path.mkdir(0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _parents(paths: list[Path]) -> list[Path]:
    """Folders above these paths that nothing else provides, outermost first."""
    found = {parent for path in paths for parent in path.parents if parent not in (Path("/"), Path("/tmp"))}
    return sorted(parent for parent in found if not any(parent.is_relative_to(path) for path in paths))


def _give(folder: Path, uid: int) -> None:
    for path in (folder, *folder.iterdir()):
        os.chown(path, uid, uid)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _needed_by_system() -> dict[str, str]:
    """Variables without which Windows starts nothing."""
    return {name: os.environ[name] for name in ("SYSTEMROOT", "TEMP", "TMP") if name in os.environ and os.name == "nt"}


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
