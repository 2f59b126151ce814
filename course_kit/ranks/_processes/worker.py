"""The program of a rank: wait for a call, make it, say how it ended. `serve` is the whole life of the process.

The main thread makes the calls. A second thread reads the channel, so that the rank can say where it is while the main
thread is blocked in a collective, and ends the process when the notebook is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import faulthandler
import os
import queue
import random
import select
import signal
import socket
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from course_kit.ranks._diagnosis import stacks
from course_kit.ranks._diagnosis.announce import CommunicationInterceptor, collective_in
from course_kit.ranks._processes import packing
from course_kit.ranks._processes.prints import LabelledStream
from course_kit.ranks._processes.wire import Channel, Position

_FRESH_SEED = torch.default_generator.initial_seed()
_NEVER = datetime.timedelta(days=1)
"""The process group's own time limit. The notebook's limit comes first: it can say which rank waits for which."""


class Rank:
    """The process's state, shared by its two threads."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.jobs: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.main_thread = threading.get_ident()
        self._interceptor: CommunicationInterceptor  # made by `work`, and not asked before "ready"
        self._out = LabelledStream(lambda text: channel.send(("out", "stdout", text)), 1)
        self._err = LabelledStream(lambda text: channel.send(("out", "stderr", text)), 2)

    def listen(self) -> None:
        """The second thread: hand jobs to the main thread, answer questions, notice that the notebook is gone."""
        parent = os.getppid()
        try:
            while True:
                while not select.select([self.channel], [], [], 1.0)[0]:
                    if os.getppid() != parent:  # the zygote was killed: no process would reap this one
                        os._exit(0)
                for message in self.channel.receive():
                    if message[0] == "where":
                        self._interceptor.tell_lost()
                        self.channel.send(("here", self._position()))
                    else:
                        self.jobs.put(message)
        except (EOFError, OSError):
            os._exit(0)

    def _position(self) -> Position:
        """The main thread's place, and the call that it or another thread waits in (autograd has its own for GPUs)."""
        frame = sys._current_frames().get(self.main_thread)
        waits = dict(self._interceptor.waiting)
        waiting = waits.get(self.main_thread) or next(iter(waits.values()), None)
        return Position(stacks.call_site(frame), stacks.stack_text(frame), waiting, collective_in(frame))

    def work(self) -> None:
        """The main thread: join the group, then make one call after the other."""
        _, rank, *group = self.jobs.get()
        _join(rank, *group)
        self._interceptor = CommunicationInterceptor(rank, self.channel.send)
        sys.stdout, sys.stderr = self._out, self._err
        self.channel.send(("ready", os.getpid()))
        while True:
            verb, *job = self.jobs.get()
            if verb == "over":
                _leave_groups()
                continue
            answer = self._answer(*job)
            self._out.end_line()
            self._err.end_line()
            with contextlib.suppress(OSError, TypeError):
                ctypes.CDLL(None).fflush(None)  # the prints of C code
            self._interceptor.tell_lost()
            self.channel.send(answer)
            del job, answer

    def _answer(self, call: bytes, notebook: packing.NotebookState, diagnose: bool) -> tuple[Any, ...]:
        """Make the call. Any error of it, `SystemExit` included, is reported and does not end the rank."""
        try:
            self._settle(notebook, diagnose)
            fn, args, kwargs = packing.loads(call)
            result = fn(*args, **kwargs)
            try:
                blob = packing.dumps(result)
            except Exception as error:
                raise TypeError(f"the result, a {type(result).__name__}, cannot be shipped back: {error}") from error
            return "returned", blob, dist.is_initialized()
        except BaseException as error:
            text = stacks.traceback_text(error)
            return "raised", text.strip().splitlines()[-1], text

    def _settle(self, notebook: packing.NotebookState, diagnose: bool) -> None:
        """Look like the notebook, and like a new process, so that no earlier call shows through."""
        if diagnose:
            self._interceptor.put_on()
        else:
            self._interceptor.take_off()
        stacks.know_cells(notebook.cells)
        if notebook.surroundings is not None:
            sys.path[:], folder, environment = notebook.surroundings
            os.chdir(folder)
            own = ("RANK", "LOCAL_RANK", "WORLD_SIZE")  # a call may have taken them away
            os.environ.update({name: value for name, value in environment.items() if name not in own})
        if notebook.stale:
            _forget(notebook.stale)
        torch.default_generator.manual_seed(_FRESH_SEED)
        torch.cuda.manual_seed_all(_FRESH_SEED)  # also before CUDA begins: PyTorch keeps the seed until then
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)


def _join(rank: int, world_size: int, backend: str, store_port: int, group: int) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    torch.set_num_threads(1)
    if "nccl" in backend:
        torch.cuda.set_device(rank)
    store = PrefixStore(str(group), TCPStore("127.0.0.1", store_port, is_master=False))
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=_NEVER)


def _leave_groups() -> None:
    """Leave the process groups that the call made: each has threads, which look for work a hundred times a second.

    A `DeviceMesh` keeps its own: PyTorch remembers meshes, and would send an equal one's messages to the old groups.
    """
    for group in set(dist.distributed_c10d._world.pg_map) - {dist.group.WORLD}:
        if not group.group_desc.startswith("mesh_"):
            dist.destroy_process_group(group)


def _forget(modules: list[str]) -> None:
    """Forget modules, so that the next import reads them afresh; this package, which is at work, stays.

    Modules below them go too: a namespace package, which has no file, would look for its parent in vain.
    """
    own = __name__.removesuffix("_processes.worker")  # `_diagnosis` is at work too
    for name in list(sys.modules):
        at_work = own.startswith(f"{name}.") or name.startswith(own)
        if not at_work and any(f"{name}.".startswith(f"{stale}.") for stale in modules):
            del sys.modules[name]


def _prepare_process() -> None:
    """Prepare a forked or fresh process: its signals, fault handler, open files, network interface and random seed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Jupyter interrupts the whole process group; the notebook decides
    faulthandler.enable(file=2, all_threads=False)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform.startswith("linux") else "lo0")
    random.seed()


def serve(connection: socket.socket) -> None:
    """Serve calls until the notebook is gone, and never return."""
    _prepare_process()
    rank = Rank(Channel(connection))
    threading.Thread(target=rank.listen, name="course-ranks-listener", daemon=True).start()
    try:
        rank.work()
    except BaseException as error:
        sys.__stderr__.write(stacks.traceback_text(error))  # type: ignore[union-attr]
    finally:
        os._exit(1)
