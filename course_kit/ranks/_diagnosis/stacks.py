"""Where a rank is, in the reader's words: "cell [5] line 7" instead of a temporary file and a process number.

Used in the ranks. Tracebacks and stacks show the lines that the reader wrote; what lies inside torch or inside this
package is left out, and so is everything that changes from run to run (addresses, temporary paths, caret marks, whose
place depends on the Python version). Lesson 00 uses this module without opening it.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import FrameType

from course_kit import waits

CELLS: dict[str, str] = {}
"""File name of a notebook cell → what to call it ("cell [5]")."""
_OURS = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep, os.path.abspath(waits.__file__))
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_FILE_LINE = re.compile(r'File "([^"]*)", line (\d+)')
_FAULT_FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in (.*)$')
_FAULT_HEADERS = ("Stack (most recent", "Current thread 0x", "Thread 0x", "Extension modules: ")
_CARETS = re.compile(r"^\s*[\^~]+[\^~ ]*$")
_BACKEND_NOISE = re.compile(r"\[\S+\.(?:cc|cpp|h):\d+\] |(?<=peer) \[[^]]*\]:\d+| This is typically caused by .*")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")


def know_cells(cells: dict[str, tuple[str, str]]) -> None:
    """Learn the labels and sources of notebook cells: file name → (label, source)."""
    know_labels({filename: label for filename, (label, _) in cells.items()})
    for filename, (_, source) in cells.items():
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


def know_labels(labels: dict[str, str]) -> None:
    """Learn what to call cells, and forget what was said of their files before: file name → label."""
    CELLS.update(labels)
    is_library.cache_clear()
    place_name.cache_clear()


@lru_cache(maxsize=4096)
def is_library(filename: str) -> bool:
    """Whether code is somebody else's: torch, Python's own, an installed package, or this package."""
    if filename in CELLS:
        return False
    return filename.startswith(("<", *_OURS, *_LIBRARIES))


@lru_cache(maxsize=4096)
def place_name(filename: str) -> str:
    """What to call a file: its cell's label, or its path below the folder that Python found it in."""
    if filename in CELLS:
        return CELLS[filename]
    roots = [os.path.join(root, "") for root in sys.path if root and filename.startswith(os.path.join(root, ""))]
    return filename[len(max(roots, key=len)) :] if roots else os.path.basename(filename)


def place(filename: str, line: int | None) -> str:
    """One line of code, in words: `cell [5] line 7`."""
    return f"{place_name(filename)} line {line}"


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames from `frame` outwards that hold the reader's code (not torch's, not ours)."""
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def call_site(frame: FrameType | None) -> str:
    """The innermost line of the reader's; for a line of a file, also the cell that led to it."""
    frames = list(user_frames(frame))
    if not frames:
        return "a line outside your code"
    inner = place(frames[0].f_code.co_filename, frames[0].f_lineno)
    cell = next((f for f in frames if f.f_code.co_filename in CELLS), None)
    if cell is None or cell is frames[0]:
        return inner
    return f"{inner}, called from {place(cell.f_code.co_filename, cell.f_lineno)}"


def stack_text(frame: FrameType | None) -> str:
    """The stack of a running thread, innermost call last, only the reader's frames (all, if there are none)."""
    summary = traceback.StackSummary.extract(traceback.walk_stack(frame))
    summary.reverse()
    return _tidy("".join(_reader_frames(summary).format()))


def traceback_text(error: BaseException) -> str:
    """The traceback of `error` and of its causes, as the reader should see it."""
    report = traceback.TracebackException.from_exception(error, compact=True)
    _shorten(report)
    return _tidy("".join(report.format()))


def fault_text(log: str) -> tuple[str, str]:
    """What the interpreter's fault handler wrote to a rank's log, told apart: (other words, stack)."""
    words, frames = [], []
    for line in log.splitlines():
        if match := _FAULT_FRAME.match(line):
            frames.insert(0, traceback.FrameSummary(match[1], int(match[2]), match[3]))
        elif line and not line.startswith(_FAULT_HEADERS):
            words.append(line)
    return _tidy("\n".join(words)), _tidy("".join(_reader_frames(frames).format()))


def _shorten(report: traceback.TracebackException) -> None:
    """Keep the reader's frames only, in `report` and in the exceptions that it is chained to."""
    report.stack = _reader_frames(report.stack)
    for chained in (report.__cause__, report.__context__, *(report.exceptions or ())):
        if chained is not None:
            _shorten(chained)


def _reader_frames(frames: Iterable[traceback.FrameSummary]) -> traceback.StackSummary:
    everything = list(frames)
    kept = [frame for frame in everything if not is_library(frame.filename)]
    return traceback.StackSummary.from_list(kept or [f for f in everything if not f.filename.startswith(_OURS)])


def _tidy(text: str) -> str:
    lines = [line for line in text.splitlines() if not _CARETS.match(line)]
    named = _FILE_LINE.sub(lambda match: place(match[1], int(match[2])), "\n".join(lines))
    return _ADDRESS.sub("0x…", _BACKEND_NOISE.sub("", named))
