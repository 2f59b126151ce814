"""Starting and ending rank processes: by forking a zygote where the system can, else one fresh Python per rank.

Both launchers offer the same verbs (`start`, `kill`, `signal`, `exit_code`), so nothing above cares which one works.
The fresh Pythons (Windows) are as correct but slower: each imports torch, so a first call takes about as long as
`torch.multiprocessing.spawn`; later calls are as fast as anywhere.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from typing import IO, Any

from course_kit.ranks._processes.zygote import EXIT, REQUEST

IN_RANK = "COURSE_LIB_RANKS_CHILD"
"""Environment variable that marks the zygote and the ranks, so that importing this package there starts nothing."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _start_python(body: str, **files: Any) -> subprocess.Popen[Any]:
    """Start a Python that sees the same packages as this one, computes on one thread and runs `body`."""
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {body}"]
    return subprocess.Popen(command, env={**os.environ, **_ONE_THREAD, IN_RANK: "1"}, **files)


class ForkLauncher:
    """Starts ranks by forking a zygote, in milliseconds; `group` is a number. Linux and macOS."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair()
        body = f"from course_kit.ranks._processes.zygote import main; main({theirs.fileno()}, {os.getpid()})"
        nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with theirs:
            self._zygote = _start_python(body, pass_fds=[theirs.fileno()], **nothing)
        self._exits: dict[tuple[int, int], int] = {}
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        """Whether the zygote still runs (a user may have killed it)."""
        return self._zygote.poll() is None

    def start(self, group: int, rank: int, log: IO[bytes]) -> socket.socket:
        """Start one rank, its C-level output going to `log`; return our end of its channel."""
        self._collect_exits()
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [REQUEST.pack(b"fork", group, rank)], [theirs.fileno(), log.fileno()])
        return ours

    def kill(self, group: int) -> None:
        """Kill every process of `group` that is alive."""
        self._ask(b"kill", group, -1)

    def signal(self, group: int, rank: int) -> None:
        """Ask a rank that cannot answer for its Python stack (it goes to the rank's log)."""
        self._ask(b"sgnl", group, rank)

    def _ask(self, verb: bytes, group: int, rank: int) -> None:
        with contextlib.suppress(OSError):  # the zygote is gone, and its ranks with it
            self._control.sendall(REQUEST.pack(verb, group, rank))

    def exit_code(self, group: int, rank: int, wait_s: float) -> int | None:
        """The rank's exit code (negative: killed by that signal); None if there is none within `wait_s`."""
        end = time.monotonic() + wait_s
        self._collect_exits()
        while (group, rank) not in self._exits and (left := end - time.monotonic()) > 0 and self.alive:
            self._collect_exits(min(left, 0.1))
        return self._exits.get((group, rank))

    def _collect_exits(self, wait_s: float = 0.0) -> None:
        """Read the zygote's reports; left unread they would one day fill the socket and stop the zygote."""
        while select.select([self._control], [], [], wait_s)[0]:
            report = b""
            with contextlib.suppress(ConnectionError):
                report = self._control.recv(EXIT.size, socket.MSG_WAITALL)
            if len(report) < EXIT.size:  # the zygote is gone
                return
            group, rank, code = EXIT.unpack(report)
            self._exits[group, rank] = code
            wait_s = 0.0

    def close(self) -> None:
        """End the zygote, and every rank with it."""
        if os.getpid() != self._owner:  # a fork of the notebook's process owns none of this
            return
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._zygote.wait(2)
        self._zygote.kill()
        self._zygote.wait()


class SpawnLauncher:
    """Starts fresh Pythons that connect back over the loopback interface. For systems without `fork`."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._processes: dict[tuple[int, int], subprocess.Popen[bytes]] = {}
        atexit.register(self.close)

    alive = True

    def start(self, group: int, rank: int, log: IO[bytes]) -> socket.socket:
        """See `ForkLauncher`."""
        token = secrets.token_hex(16)
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(60)
            port = server.getsockname()[1]
            body = f"from course_kit.ranks._processes.launch import connect; connect({port})"
            process = _start_python(body, stdin=subprocess.PIPE, stdout=log, stderr=log)
            self._processes[group, rank] = process
            assert process.stdin is not None
            with process.stdin:  # not on the command line, which every user of the machine can read
                process.stdin.write(token.encode())
            return self._accept(server, token)

    def _accept(self, server: socket.socket, token: str) -> socket.socket:
        while True:
            connection, _ = server.accept()
            connection.settimeout(5)
            with contextlib.suppress(OSError):
                if secrets.compare_digest(connection.recv(32, socket.MSG_WAITALL), token.encode()):
                    connection.settimeout(None)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return connection
            connection.close()

    def kill(self, group: int) -> None:
        """See `ForkLauncher`."""
        processes = [process for key, process in self._processes.items() if key[0] == group]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()

    def signal(self, group: int, rank: int) -> None:
        """Do nothing: Windows has no SIGUSR1, so a rank that cannot answer stays without a stack."""

    def exit_code(self, group: int, rank: int, wait_s: float) -> int | None:
        """See `ForkLauncher`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._processes[group, rank].wait(wait_s)
        return None

    def close(self) -> None:
        """End every rank."""
        if os.getpid() == self._owner:
            for group in {group for group, _ in self._processes}:
                self.kill(group)


def connect(port: int) -> None:
    """Begin a rank of the `SpawnLauncher`: connect back, prove its identity, and serve; torch is imported by now."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(sys.stdin.read().encode())
    importlib.import_module("course_kit.ranks._processes.worker").serve(connection)


Launcher = ForkLauncher | SpawnLauncher
_lock = threading.Lock()
_launcher: Launcher | None = None


def can_fork() -> bool:
    """Whether the `ForkLauncher` works on this system."""
    return hasattr(os, "fork") and hasattr(socket, "send_fds")


def launcher() -> Launcher:
    """The one launcher of this process, started on first use (and again after a fork, or if its zygote was killed)."""
    global _launcher
    with _lock:
        if _launcher is None or not _launcher.alive or _launcher._owner != os.getpid():
            _launcher = ForkLauncher() if can_fork() else SpawnLauncher()
        return _launcher
