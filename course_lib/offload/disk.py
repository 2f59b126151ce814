"""Files as a memory: threads read vectors ahead and write them behind, and a step is there whole or not at all.

A step writes new files, `commit` replaces one small file that names them (the manifest), and only then the files of the
step before are deleted. So the last committed step survives a killed process and a full disk. (It may not survive a
power failure: `commit` does not wait until the disk has the manifest.)

The system keeps pages of files in main memory, and a read from there would not measure the disk. So the system is told
to drop a file's pages where it takes such advice (`posix_fadvise`: Linux does, macOS and Windows do not).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from course_kit.units import Bytes
from course_lib.offload.copy_stream import BandwidthLimit


class Disk:
    """Vectors by name, in the files of a folder.

    Args:
        folder: created if missing; files that were not committed are removed.
        bytes_per_s: the bandwidth, of reading and writing together; None for the disk's own.

    Attributes:
        facts: the facts of the last `commit`.
        read_bytes, written_bytes: bytes read and written so far.

    Raises:
        ValueError: a file is missing or has another size than when it was committed, or a bandwidth is not positive.
    """

    def __init__(self, folder: str | Path, bytes_per_s: float | None = None) -> None:
        self.folder, self._limit = Path(folder), BandwidthLimit(bytes_per_s)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.facts: Mapping[str, Any] = {}
        self.read_bytes = self.written_bytes = Bytes(0)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="disk")  # so many files are read and written at once
        self._generation, self._files = 0, dict[str, tuple[str, int]]()
        self._new: dict[str, tuple[str, int]] = {}
        self._writes: list[Future[None]] = []
        if self._manifest.exists():
            stored = json.loads(self._manifest.read_text())
            self._generation, self.facts = stored["generation"], stored["facts"]
            self._files = {name: (file, size) for name, (file, size) in stored["files"].items()}
            for file, size in self._files.values():
                self._check(file, size)  # a copy of the folder may have been cut
        self._sweep()

    def start_read(self, name: str, into: Tensor) -> Future[None]:
        """Start to read a committed vector into a contiguous one of as many bytes; `result()` waits for it.

        Raises:
            ValueError: no such vector, or another size (also from `result()`, for a file that was cut).
        """
        if name not in self._files:
            raise ValueError(f"{self.folder} has no {name!r}, but {', '.join(map(repr, self._files)) or 'nothing'}")
        file, size = self._files[name]
        if size != into.nbytes:
            raise ValueError(f"{name!r} has {size} bytes in {self.folder}, and {into.nbytes} were asked for")
        return self._threads.submit(self._read, file, size, into, time.perf_counter())

    def start_write(self, name: str, vector: Tensor) -> None:
        """Start to write a vector, which must not change until `commit`; wait for all writes but the latest."""
        wait(self._writes[-2:-1])  # older ones are done; else all states would wait in memory for a slow disk
        file = f"{name}.{self._generation + 1}"  # beside the committed file, which has an older number
        self._new[name] = (file, vector.nbytes)
        self._writes.append(self._threads.submit(self._write, file, vector, time.perf_counter()))

    def commit(self, **facts: Any) -> None:
        """Wait for all writes, and commit them with facts that JSON can hold; error messages omit those named `_…`.

        Raises:
            OSError: a write has failed, because the disk is full, say. The step before is still committed.
        """
        try:
            while self._writes:
                self._writes[-1].result()
                self._writes.pop()
            files = self._files | self._new
            stored = {"generation": self._generation + 1, "facts": facts, "files": files}
            self._manifest.with_suffix(".new").write_text(json.dumps(stored))
        except OSError as failed:
            self.discard()
            raise OSError(
                failed.errno,
                f"{failed.strerror}: this step was not written. {self.folder} still has the step before, with "
                f"{self._said}. Writing a step needs as much room again as the files of the step before",
            ) from failed
        os.replace(self._manifest.with_suffix(".new"), self._manifest)  # atomic: from here on the step counts
        self._generation, self._files, self.facts, self._new = self._generation + 1, files, facts, {}
        self._sweep()

    def discard(self) -> None:
        """Drop all writes since the last commit."""
        for write in self._writes:  # else a queued write makes its file after the sweep
            with contextlib.suppress(OSError):
                write.result()
        self._writes.clear()
        self._new.clear()
        self._sweep()

    @property
    def _said(self) -> str:
        return json.dumps({name: fact for name, fact in self.facts.items() if name[0] != "_"})

    @property
    def _manifest(self) -> Path:
        return self.folder / "manifest.json"

    def _sweep(self) -> None:
        """Remove files that are not committed (any more)."""
        known = {file for file, _ in self._files.values()} | {self._manifest.name}
        for path in self.folder.iterdir():
            if path.name not in known and path.is_file():
                path.unlink()

    def _check(self, file: str, size: int) -> None:
        path = self.folder / file
        actual = path.stat().st_size if path.exists() else None
        if actual != size:
            state = "is not there" if actual is None else f"has {actual} bytes"
            raise ValueError(
                f"{path} {state}, where {size} bytes were committed with {self._said}: the copy was cut or "
                "files were removed; take another copy of the folder"
            )

    def _read(self, file: str, size: int, into: Tensor, asked_at: float) -> None:
        self._check(file, size)
        _read_file(self.folder / file, into)
        self.read_bytes += size
        self._limit.wait(size, asked_at)

    def _write(self, file: str, vector: Tensor, asked_at: float) -> None:
        _write_file(self.folder / file, vector)
        self.written_bytes += vector.nbytes
        self._limit.wait(vector.nbytes, asked_at)


class Bandwidth(NamedTuple):
    """Bytes a second."""

    write: float
    read: float


def bandwidth(folder: str | Path, n_bytes: int = 2**26) -> Bandwidth:
    """Measure how fast one thread writes and reads a file in this folder, without the page cache if possible."""
    vector = torch.randint(256, (n_bytes,), dtype=torch.uint8)  # random: some disks compress
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        path, moments = Path(inside) / "vector", [time.perf_counter()]
        _write_file(path, vector)
        moments.append(time.perf_counter())
        _read_file(path, vector)
        moments.append(time.perf_counter())
    return Bandwidth(n_bytes / (moments[1] - moments[0]), n_bytes / (moments[2] - moments[1]))


def _bytes_of(vector: Tensor) -> memoryview:
    """The vector's memory as bytes."""
    if not vector.is_contiguous() or vector.device.type != "cpu":
        raise ValueError(f"a file takes contiguous vectors in main memory; this one is on {vector.device}")
    # not by way of numpy: a storage that numpy has seen cannot be resized any more
    return memoryview((ctypes.c_ubyte * vector.nbytes).from_address(vector.data_ptr())).cast("B")


def _read_file(path: Path, into: Tensor) -> None:
    whole = _bytes_of(into)
    with open(path, "rb") as file:
        _drop_pages(file)  # another process may have read the file, or copied it
        if (count := file.readinto(whole)) < len(whole):
            raise ValueError(f"{path} ends after {count} of {len(whole)} bytes")
        _drop_pages(file)  # the next read must come from the disk, too


def _write_file(path: Path, vector: Tensor) -> None:
    with open(path, "wb") as file:
        file.write(_bytes_of(vector))
        file.flush()
        if hasattr(os, "posix_fadvise"):
            os.fdatasync(file.fileno())  # the system drops only pages that the disk has
        _drop_pages(file)


def _drop_pages(file: BinaryIO) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
