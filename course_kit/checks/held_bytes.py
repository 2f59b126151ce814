"""Bytes that an answer holds, with the lines that made them; also those that `measure.memory` does not see.

A segment that copies its activations into bytes objects saves nothing, and its record says that it holds nothing. But
Python and NumPy tell `tracemalloc` of every block that they take; the kernel knows which bytes a process has written
and mapped; and a tensor that no record has seen is still an object of Python's. So the counts add up.
"""

from __future__ import annotations

import gc
import importlib
import os
import stat
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from course_kit.cells import is_cell
from course_kit.measure.memory import MemoryRecord
from course_kit.measure.storages import line_text
from course_kit.measure.tracker import Tracker
from course_kit.measure.traffic import Connection, bytes_handed_over
from course_kit.units import Bytes

BLOCK = 4096
"""Bytes. Smaller blocks are bookkeeping (a frame, a node of the graph, a dict of a hundred entries), unless a line of a
notebook takes them often."""

PIECE, PIECES = 256, 65536
"""Bytes. Smaller pieces, such as the objects around tensors, count only where a line holds so much of them."""

CACHES = (
    "*/course_kit/measure/*",
    "*/course_kit/checks/failed.py",
    "*/course_kit/checks/held_bytes.py",
    "*/course_kit/cells.py",
    "*/torch/[!s]*",
    "*/linecache.py",
    "*/weakref.py",
    "<frozen *",
)
"""Files whose blocks are no tensors: a record, a check's prints in a buffer, the tables of names that a count itself
keeps, an import, and things that PyTorch looks up once and remembers. (PyTorch's `serialization.py` and `storage.py`
count: code that saves a tensor into memory holds the tensor.)"""

OPEN = Path("/proc/self/fd")
"""The files that this process has open, where the system says so."""


@contextmanager
def outside_torch() -> Iterator[Callable[[], HeldBytes]]:
    """Count the bytes that a record of memory does not see; open this block before `measure.memory`.

        with outside_torch() as outside, measure.memory(model) as record:
            answer()
            held = record.now.total + outside()

    Counted is memory that was taken inside the `with` block and is still held: blocks of 4 KiB or more of Python and
    NumPy, and smaller ones that a line of a notebook takes so often that they add up; tensors that the record has not
    seen (all of them, if there is no record); and on Linux, bytes that this process has written to files of its folder
    and of those for temporary files, and memory that the process shares. An array of NumPy under a tensor
    (`torch.from_numpy`) counts twice. A file counts as long as it is there. A storage that no tensor has is not seen.

    Yields:
        A function that returns the bytes held at this moment, with the lines that took them.
    """
    importlib.import_module("torch._dynamo")  # a mode's first operation imports this, in five times the time if traced
    ours = not tracemalloc.is_tracing()
    if ours:
        tracemalloc.start()
    start, mapped, written, opened = time.time(), _mapped(), _written(), _sizes(OPEN.glob("*"))
    known = {block._cdata: StorageWeakRef(block) for block in _storages()}  # no new block gets their address meanwhile
    blocks = _blocks()

    def outside() -> HeldBytes:
        unseen = sum({block._cdata: block.nbytes() for block in _storages() if block._cdata not in known}.values())
        lines: Counter[str] = Counter()
        for (file, line, _), nbytes in _large(_blocks() - blocks).items():
            lines[line_text(file, line, "<a cell>")] += nbytes
        lines["tensors that no record has seen"] = unseen if unseen >= BLOCK else 0  # a check keeps a number or two
        lines["files"] = _in_files(start, _written_since(written), opened)
        lines["shared memory"] = max(0, _mapped() - mapped)
        return HeldBytes(lines.total(), {line: Bytes(n) for line, n in lines.most_common() if n})

    try:
        yield outside
    finally:
        if ours:
            _let_threads_note()
            tracemalloc.stop()


def _let_threads_note() -> None:
    """Let PyTorch's threads, which wait for Python's lock to note what they take, have it before tracing ends.

    A thread that gets the lock later crashes (github.com/python/cpython/issues/128679). Each sleep hands the lock to
    one of them, which then runs, or is ready to: none waits any more when three times in a row no thread is ready.
    """
    quiet, end = 0, time.monotonic() + 1
    while quiet < 3 and time.monotonic() < end:
        time.sleep(0.001)
        quiet = 0 if _others_run() else quiet + 1


def _others_run() -> bool:
    """Whether another thread of this process runs or is ready to, where the system says so."""
    for thread in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # the thread has ended
            state = (thread / "stat").read_text("ascii", "replace").rpartition(") ")[2][0]  # R, ready, or S, asleep
            if state == "R" and thread.name != str(threading.get_native_id()):
                return True
    return False


# --- Python and NumPy ------------------------------------------------------------------------------------------------


def _blocks() -> Counter[tuple[str, int, bool | None]]:
    """Bytes by line and kind of block: large (None), or of a cell and in pieces (True) or in small ones (False)."""
    found: Counter[tuple[str, int, bool | None]] = Counter()
    traces: Any = tracemalloc.take_snapshot().traces
    for trace in traces._traces:  # plain tuples: an object for each of 40,000 takes half a second
        size, (file, line) = trace[1], trace[2][0]  # … and the last frame's place
        if size >= BLOCK:
            found[file, line, None] += size
        elif _is_cell(file):
            found[file, line, size >= PIECE] += size
    return found


def _large(blocks: Counter[tuple[str, int, bool | None]]) -> Counter[tuple[str, int, bool | None]]:
    """The blocks among them that count."""
    least = {None: 0, True: BLOCK, False: PIECES}
    return Counter({at: n for at, n in blocks.items() if n >= least[at[2]] and not _is_cache(at[0])})


_is_cell = lru_cache(4096)(is_cell)  # a few hundred files, asked for thousands of times


@lru_cache(4096)
def _is_cache(file: str) -> bool:
    return any(fnmatch(file.replace("\\", "/"), pattern) for pattern in CACHES)


# --- tensors ----------------------------------------------------------------------------------------------------------


def _storages() -> Iterator[UntypedStorage]:
    """The memory under each tensor of Python's that no open record knows."""
    seen = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Tracker)]
    things = gc.get_objects()
    kinds = {kind for kind in set(map(type, things)) if issubclass(kind, torch.Tensor)}
    for thing in things:
        if type(thing) in kinds:  # there are some hundred thousand things, and some hundred kinds
            with suppress(Exception), torch._C.DisableTorchFunctionSubclass():  # a tensor without memory of its own
                block = torch.Tensor.untyped_storage(thing)  # a subclass may answer otherwise
                if block.data_ptr() and not any(mode.knows(block) for mode in seen):
                    yield block


# --- files and shared memory ------------------------------------------------------------------------------------------


def _written() -> tuple[int, dict[Connection, int]]:
    """Bytes that this process has handed to `write` so far, and those that went to each connection, read before."""
    connections = bytes_handed_over()  # so bytes that a thread of the backend writes meanwhile are no growth of a file
    return _all_written(), connections


def _written_since(before: tuple[int, dict[Connection, int]]) -> int:
    """The bytes written since `before` to files and the like; those of a connection closed since are among them."""
    total, (earlier, connections) = _all_written(), before
    return total - earlier - sum(n - connections.get(each, 0) for each, n in bytes_handed_over().items())


def _all_written() -> int:
    """Bytes that this process has handed to `write`; 0 where the system does not say."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/io").read_text("ascii").splitlines()
        return int(next(line for line in lines if line.startswith("wchar")).split()[1])
    return 0


def _in_files(start: float, written: int, opened: dict[tuple[int, int], int]) -> int:
    """Bytes in files that have changed since `start`, as far as this process can have written them.

    Files that were open before count by their growth alone: all that a program prints may go into one.
    """
    if written < PIECES:  # prints are written, too, and other programs may make files meanwhile
        return 0
    folders = {os.path.realpath(folder) for folder in (os.getcwd(), tempfile.gettempdir(), "/dev/shm")}
    sizes = _sizes((*(file for folder in folders for file in _files(folder, start)), *OPEN.glob("*")), start)
    grown = sum(max(0, size - opened.get(file, 0)) for file, size in sizes.items())
    return min(written, grown) if grown >= BLOCK else 0


def _sizes(paths: Iterable[str | Path], start: float = 0.0) -> dict[tuple[int, int], int]:
    """(Device, inode) → bytes, for each file of `paths` that is this user's and has changed since `start`."""
    found: dict[tuple[int, int], int] = {}
    for path in paths:
        with suppress(OSError):
            about = os.stat(path)
            ours = about.st_uid == os.getuid() and about.st_mtime >= start - 1
            if ours and stat.S_ISREG(about.st_mode):  # a file, and not a socket or a terminal
                found[about.st_dev, about.st_ino] = about.st_size
    return found


def _files(folder: str, start: float) -> Iterator[str]:
    """The files of a folder, and of those in it in which a file has been made since `start`: others are many."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield entry.path
            elif entry.stat(follow_symlinks=False).st_mtime >= start - 1:
                yield from _files(entry.path, start)


def _mapped() -> int:
    """Bytes of memory that this process can write and shares: with a file, or with other processes."""
    total = 0
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/maps").read_text("utf-8", "replace").splitlines():
            where, _, how = line.partition(" ")
            if how.startswith("rw") and how[3] == "s":
                first, last = (int(number, 16) for number in where.split("-"))
                total += last - first
    return total


# --- bytes and the lines that made them -------------------------------------------------------------------------------

MOST = 3
"""Lines that a message names at most; a line with less than a tenth of the bytes is left out."""

INDENT = " " * 12
"""Spaces up to the first word behind "came"."""


class HeldBytes(Bytes):
    """Bytes with the lines that made them; a sum has those of both, a difference those of the first.

    HeldBytes(4096, {"line 7 of add: kept = x.clone()": Bytes(4096)})
    """

    lines: Mapping[str, Bytes]  #: line → bytes, the most first

    def __new__(cls, value: object = 0, lines: Mapping[str, Bytes] | None = None) -> Self:
        self = super().__new__(cls, value)
        self.lines = lines or {}
        return self

    @property
    def words(self) -> str:
        """The number, and below it the lines that made most of it."""
        most = [f"{INDENT}{n} by {line}" for line, n in [*self.lines.items()][:MOST] if 10 * n >= self > 0]
        return "\n".join([f"{self}, of which" if most else f"{self}", *most])

    def __add__(self, other: object) -> Self:
        total = super().__add__(other)
        if isinstance(other, HeldBytes) and isinstance(total, HeldBytes):
            both = Counter(self.lines) + Counter(other.lines)
            total.lines = {line: Bytes(n) for line, n in both.most_common()}
        return total

    __radd__ = __add__

    def _same(self, value: object, other: object) -> Self:
        total = super()._same(value, other)
        return total if total is NotImplemented else type(self)(total, self.lines)


def held(record: MemoryRecord, at: str = "peak") -> HeldBytes:
    """The bytes of a record with `lines=True`, open or closed, beyond those before it, at the "peak" or "now"."""
    timeline = record.timeline  # an open record draws up a new one each time
    account = timeline.account(timeline.peak_row if at == "peak" else -1)
    return HeldBytes(account.total - timeline.account(0).total, record.by_line(at))
