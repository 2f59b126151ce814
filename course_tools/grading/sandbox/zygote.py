"""The process that kernels are forked from on Linux: it has imported torch, IPython and the course, once for a batch.

    grader ── request, descriptors ─► zygote ── fork ─► keeper ── fork ─► kernel
      ▲                                                   │  outside        │  enters the empty sandbox that bubblewrap
      └──── pid, "ready", end of file when it ended ──────┘                 │  made, gives up privileges, is a kernel

A fork cannot pass through bubblewrap, which replaces the process by another program. So bubblewrap makes the sandbox as
it always did, with the same arguments, for each kernel a new one, and holds it open with a program that only waits
(see `bubblewrap`). The forked kernel joins its namespaces, as `nsenter` does, before anything of a submission is there.
What can be seen, written and reached is decided by bubblewrap alone; ours is to join all of it and to drop every
privilege, and the kernel looks whether both are done before it starts.

An answer finds no way back here: kernels get no descriptor of the zygote, and live where its process cannot be named
(without bubblewrap they are ordinary processes of the same user, and nothing is promised). Nor does the zygote ever
read anything that a kernel wrote, or know a submission, a hidden test or a result. It draws no random number.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

import psutil

from course_tools.grading.sandbox import launcher
from course_tools.grading.sandbox.bubblewrap import KINDS

USEFUL = ("torch._dynamo", "course_kit.measure", "course_kit.ranks", "course_kit.notebook", "course_kit.compare")
"""Modules that most labs use. (PyTorch imports the first when a meter of the course sees its first operation.)"""
MOST_BYTES = 65536
"""Size of a request; it holds no text of a submission."""
_PARENT_DEATH, _DUMPABLE, _DROP_BOUND, _SUBREAPER, _NO_NEW_PRIVILEGES, _AMBIENT, _CLEAR = 1, 4, 24, 36, 38, 47, 4
_OWNER = 0xB701
"""The request of Linux for the user namespace that owns another namespace (NS_GET_USERNS)."""
_CAPABILITIES = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def main(control_fd: int, interpreter_fd: int) -> None:
    """Import everything, then fork a kernel for each request until the grader's end of the socket closes."""
    os.close(interpreter_fd)
    launcher.load((*launcher.NEEDED, *USEFUL))
    gc.freeze()  # kernels' garbage collectors leave objects from here alone, so that their pages stay shared
    _prctl(_DUMPABLE, 0)  # no other process of this user may look into it
    control, keepers = socket.socket(fileno=control_fd), set[int]()
    while True:
        ready, _, _ = select.select([control], [], [], 0.5)
        keepers = {keeper for keeper in keepers if os.waitpid(keeper, os.WNOHANG)[0] == 0}
        if not ready:
            continue
        message, fds, _, _ = socket.recv_fds(control, MOST_BYTES, 1 + len(KINDS))
        if not message:
            break
        keepers.add(_fork_keeper(control, json.loads(message), fds))
    for keeper in keepers:
        os.kill(keeper, signal.SIGTERM)
    for keeper in keepers:
        os.waitpid(keeper, 0)


def _fork_keeper(control: socket.socket, request: dict[str, Any], fds: list[int]) -> int:
    """Fork the keeper of a kernel, which gets these descriptors: its line to the grader, and namespaces to join."""
    zygote = os.getpid()
    if keeper := os.fork():
        for fd in fds:
            os.close(fd)
        return keeper
    line = socket.socket(fileno=fds[0])
    try:
        control.close()
        _keep(request, line, dict(zip(KINDS, fds[1:], strict=False)), zygote)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            line.send(f"failed {type(problem).__name__}: {problem}".encode()[:500])
    finally:
        os._exit(0)


def _keep(request: dict[str, Any], line: socket.socket, namespaces: dict[str, int], zygote: int) -> None:
    """Fork the kernel and wait for its end; then end what it left. The end of this process tells the grader."""
    if request["isolated"] != (len(namespaces) == len(KINDS)):
        raise RuntimeError(f"a kernel is isolated by all of {KINDS}, or by none")
    outside = {kind: _identity(kind) for kind in KINDS}
    user_fds = _join_owner(namespaces) if namespaces else []
    _prctl(_SUBREAPER, 1)  # what a plain kernel's children leave behind becomes this process's child
    kernel = os.fork()
    if kernel == 0:
        try:
            _enter(request, namespaces, user_fds, outside)
            line.send(b"ready")
            line.close()
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            launcher.become_kernel()
        except Exception as problem:
            with contextlib.suppress(OSError):
                line.send(f"failed {type(problem).__name__}: {problem}".encode()[:500])
        finally:
            os._exit(1)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(kernel, signal.SIGKILL))
    _prctl(_PARENT_DEATH, signal.SIGTERM)
    if os.getppid() != zygote:  # it ended before it could be heard
        os.kill(kernel, signal.SIGKILL)
    line.send(f"pid {kernel}".encode())
    while os.waitpid(-1, 0)[0] != kernel:
        pass
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    child.kill()
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)


def _join_owner(namespaces: dict[str, int]) -> list[int]:
    """Join the user namespace that owns the others, if it is another one, and the processes' one for later children.

    Returns:
        The user namespace that is left to join at last, when the others are joined; nothing if it is joined already.
    """
    owner = fcntl.ioctl(namespaces["mnt"], _OWNER)
    joined = _identity("user")
    if os.fstat(owner).st_ino != joined:
        _join(owner)
        joined = os.fstat(owner).st_ino
    _join(namespaces["pid"])
    return [] if os.fstat(namespaces["user"]).st_ino == joined else [namespaces["user"]]


def _enter(request: dict[str, Any], namespaces: dict[str, int], user_fds: list[int], outside: dict[str, int]) -> None:
    """Make this process, a fresh fork, what a program is that bubblewrap starts, and give it the kernel's limits."""
    for kind in KINDS[:-1] if namespaces else ():
        if kind != "pid":
            _join(namespaces[kind])
    for fd in user_fds:
        _join(fd)
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if namespaces:
        _prctl(_NO_NEW_PRIVILEGES, 1)
        _prctl(_AMBIENT, _CLEAR)
        with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
            last = int(file.read())
        for capability in range(last + 1):
            _prctl(_DROP_BOUND, capability)
    launcher.restrict(request["limits"])
    if namespaces:
        header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
        _check(_libc.capset(header, nothing), "capset")
        _look_whether_isolated(outside)
    _prctl(_DUMPABLE, 1)  # as after any start of a program: files in /proc/self are its own
    sys.argv = ["ipykernel_launcher", *request["arguments"]]
    importlib.invalidate_caches()
    sys.modules["torch"].default_generator.seed()  # each from the system's own numbers, as in a new process;
    sys.modules["numpy"].random.seed()  # `random` does it by itself


def _look_whether_isolated(outside: dict[str, int]) -> None:
    """Raise unless this process has left the grader's namespaces and has no privilege of any kind."""
    same = [kind for kind in ("mnt", "pid", "net", "ipc", "uts") if _identity(kind) == outside[kind]]
    with open("/proc/self/status", encoding="ascii") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file)
    kept = [name for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status[name], 16)]
    if same or kept or status["NoNewPrivs"] != "1" or 0 in (os.getuid(), os.getgid()):
        raise PermissionError(f"not isolated: {same} {kept} {status['NoNewPrivs']} {os.getuid()}")


def _identity(kind: str) -> int:
    """The number of this process's namespace of a kind."""
    return os.stat(f"/proc/self/ns/{kind}").st_ino


def _join(namespace_fd: int) -> None:
    _check(_libc.setns(namespace_fd, 0), "setns")


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), *3 * [ctypes.c_ulong(0)]), f"prctl {option}")


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
