"""The process that ranks are forked from: it imports torch once and stays at one thread, so a fork is fast and safe.

Forking the notebook's own kernel is not safe: after a matmul has started threads, its children hang. The zygote is
a fresh Python that only imports; forking it gives a rank in milliseconds, and the ranks share its memory. The zygote is
also the ranks' parent to the operating system: it reaps them, tells the notebook the exit code of each, and kills them
all when the notebook is gone, even if that was killed with SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys

REQUEST = struct.Struct("<4sqq")
"""A request of the notebook: verb (`fork`, `kill`, `sgnl`), group, rank (-1 where the whole group is killed)."""
EXIT = struct.Struct("<qqq")
"""The zygote's answer when a rank ended: group, rank, exit code (minus the signal's number if killed)."""
NEEDED = "course_kit.ranks._processes.worker"
"""The module that every rank needs (with torch, half the work); imported before the first fork."""
USEFUL = (
    "torch._dynamo",  # PyTorch imports it when a dispatch mode, such as each of `measure`'s, sees its first operation
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
)
"""Modules of some lessons, seconds of import in every rank; imported whenever no request is waiting."""
FIRST = "COURSE_RANKS_IMPORT"
"""An environment variable: one more module to import before the first fork; its files must not change meanwhile."""


class Zygote:
    """Serves fork and kill requests until the notebook's end of `control` closes."""

    def __init__(self, control: socket.socket, notebook_pid: int) -> None:
        self._control = control
        self._notebook_pid = notebook_pid
        self._children: dict[int, tuple[int, int]] = {}
        self._unloaded = list(USEFUL)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """The loop: requests in, exit codes out."""
        try:
            while os.getppid() == self._notebook_pid:
                patience_s = 0.0 if self._unloaded else 1.0
                ready, _, _ = select.select([self._control, self._wake_read], [], [], patience_s)
                if not ready and self._unloaded:
                    _import(self._unloaded.pop(0))
                if self._wake_read in ready:
                    os.read(self._wake_read, 512)
                self._reap()
                if self._control in ready and not self._answer():
                    return
        except ConnectionError:
            return
        finally:
            self._kill_all(list(self._children))

    def _answer(self) -> bool:
        """Take one request; False when the notebook is gone."""
        request, fds, _, _ = socket.recv_fds(self._control, REQUEST.size, 2)
        if len(request) < REQUEST.size:
            return False
        verb, group, rank = REQUEST.unpack(request)
        if verb == b"fork":
            self._fork(group, rank, *fds)
        elif verb == b"kill":
            self._kill_all([pid for pid, child in self._children.items() if child[0] == group])
        elif verb == b"sgnl":
            for pid in [pid for pid, child in self._children.items() if child == (group, rank)]:
                os.kill(pid, signal.SIGUSR1)
        return True

    def _fork(self, group: int, rank: int, channel_fd: int, log_fd: int) -> None:
        gc.freeze()  # the ranks' garbage collectors leave objects from here alone, so their pages stay shared
        pid = os.fork()
        if pid:
            self._children[pid] = (group, rank)
            os.close(channel_fd)
            os.close(log_fd)
            return
        try:  # from here on this is the rank
            _end_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._wake_read, self._wake_write, self._control.detach()):
                os.close(fd)
            for fd in (1, 2):
                os.dup2(log_fd, fd)
            importlib.import_module(NEEDED).serve(socket.socket(fileno=channel_fd))
        finally:
            os._exit(1)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._control.sendall(EXIT.pack(*self._children.pop(pid), os.waitstatus_to_exitcode(status)))

    def _kill_all(self, pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)  # safe: an unreaped child's pid is not given to anyone else
        for pid in pids:
            _, status = os.waitpid(pid, 0)
            with contextlib.suppress(OSError):
                self._control.sendall(EXIT.pack(*self._children.pop(pid), os.waitstatus_to_exitcode(status)))


def main(control_fd: int, notebook_pid: int) -> None:
    """Import the ranks' modules, then serve. Ctrl-C is for the notebook: the zygote and its ranks ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=control_fd)
    _import(NEEDED)
    if first := os.environ.get(FIRST):
        _import(first)
    Zygote(control, notebook_pid).serve()


def _end_with_parent() -> None:
    """Have Linux kill this process when the zygote ends, even if the process is deep in C code at that moment."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)


def _import(name: str) -> None:
    """Import a module, if this version of torch has it; without it, ranks import their modules themselves."""
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
