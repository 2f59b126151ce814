"""Prints of ranks: whole lines, labelled by rank, in an order that does not depend on the ranks' speed.

Rank 0's lines appear while they are printed; the others' are kept and follow in rank order when the call ends, also
when it ends in a failure. `sys.stdout` and `sys.stderr` of a rank travel as messages; prints of C code land in the
rank's log file and follow last.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from operator import itemgetter
from typing import IO

_HELD_CHARACTERS = 8 << 20
_CHATTER = re.compile(r"^\[(Gloo\]|[WIE]\d{4} )")
"""Lines that gloo and c10 log unasked; they hold times and addresses."""


class LabelledStream(io.TextIOBase):
    """A rank's `sys.stdout` or `sys.stderr`: hands over whole lines, so that two ranks never share one."""

    def __init__(self, emit: Callable[[str], None], fd: int) -> None:
        self._emit = emit
        self._fd = fd
        self._line = ""

    encoding = "utf-8"

    def writable(self) -> bool:
        """True, as for any output stream."""
        return True

    def fileno(self) -> int:
        """The C-level stream (a log file), for code that hands it to a child process."""
        return self._fd

    def write(self, text: str) -> int:
        """Keep `text` until its line is complete."""
        complete, newline, self._line = (self._line + text).rpartition("\n")
        if newline:
            self._emit(complete + newline)
        return len(text)

    def end_line(self) -> None:
        """Hand over a last line that has no newline."""
        if self._line:
            self.write("\n")


class Printer:
    """The notebook's side: shows the lines of one call."""

    def __init__(self, world_size: int) -> None:
        self._held: list[tuple[int, str, str]] = []
        self._room = [_HELD_CHARACTERS] * world_size

    def take(self, rank: int, stream: str, text: str) -> None:
        """Show or keep the text that `rank` printed on `stream` ("stdout" or "stderr")."""
        if rank == 0:
            self._show(rank, stream, text)
        elif self._room[rank] > 0:
            self._room[rank] -= len(text)
            if self._room[rank] <= 0:
                text += f"… rank {rank} printed more than {_HELD_CHARACTERS >> 20} MiB; the rest is not kept\n"
            self._held.append((rank, stream, text))

    def finish(self) -> None:
        """Show the kept lines, in rank order."""
        for printed in sorted(self._held, key=itemgetter(0)):
            self._show(*printed)

    @staticmethod
    def _show(rank: int, stream: str, text: str) -> None:
        target = sys.stderr if stream == "stderr" else sys.stdout
        target.write("".join(f"[rank {rank}] {line}\n" for line in text.splitlines()))
        target.flush()


class Log:
    """A nameless file that takes the prints of one rank's C code, and outlives the rank."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self._seen = 0

    def news(self) -> str:
        """The lines since the last time, without the backend's own chatter."""
        fd = self.file.fileno()
        size = os.fstat(fd).st_size
        if size <= self._seen:  # less, where a command of the rank's has opened /dev/stderr anew, which cuts the file
            return ""
        text = _read_at(fd, size - self._seen, self._seen).decode(errors="replace")
        self._seen = size
        return "".join(line for line in text.splitlines(keepends=True) if not _CHATTER.match(line))


def _read_at(fd: int, count: int, offset: int) -> bytes:
    """Read without moving the position at which the rank writes."""
    if hasattr(os, "pread"):
        return os.pread(fd, count, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    data = os.read(fd, count)
    os.lseek(fd, 0, os.SEEK_END)
    return data
