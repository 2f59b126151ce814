"""A rank's place and tensors in the reader's words: "cell [5] line 7" instead of a temporary file and a process number.

Tracebacks and stacks show the lines that the reader wrote. Frames inside of torch or of this package are left out, and
so is everything that changes from run to run (addresses, temporary paths, caret marks, whose place depends on the
Python version). With the names of tensors, ranks that reduce `a` and `b` in different orders can be told from ranks
that agree: the backend sees two tensors of the same shape and sums them in silence.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from inspect import CO_OPTIMIZED
from itertools import islice
from types import CodeType, FrameType

import torch

from course_kit import communications
from course_kit.cells import remember

CELLS: dict[str, str] = {}
"""File name of a notebook cell → the words for it ("cell [5]")."""
_OURS = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep, os.path.abspath(communications.__file__))
LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_FILE_LINE = re.compile(r'File "([^"]*)", line (\d+)')
_FAULT_FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in (.*)$')
_FAULT_HEADERS = ("Stack (most recent", "Current thread 0x", "Thread 0x", "Extension modules: ")
_CARETS = re.compile(r"^\s*[\^~]+[\^~ ]*$")
_BACKEND_NOISE = re.compile(r"\[\S+\.(?:cc|cpp|h):\d+\] |(?<=peer) \[[^]]*\]:\d+| This is typically caused by .*")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")


def know_cells(cells: dict[str, tuple[str, str]]) -> None:
    """Learn labels and sources of notebook cells, and forget earlier words for them: file name → (label, source)."""
    for filename, (label, source) in cells.items():
        CELLS[filename] = label
        remember(filename, source)
    is_library.cache_clear()
    place_name.cache_clear()


@lru_cache(maxsize=4096)
def is_library(filename: str) -> bool:
    """Whether code is not the reader's: torch, Python's own, an installed package, or this package."""
    if filename in CELLS:
        return False
    return filename.startswith(("<", *_OURS, *LIBRARIES))


@lru_cache(maxsize=4096)
def place_name(filename: str) -> str:
    """The words for a file: its cell's label, or its path below the folder where Python found it."""
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
    """The stack of a running thread, innermost call last, only the reader's frames (or else all but ours)."""
    return _tidy("".join(_reader_frames(traceback.extract_stack(frame)).format()))


def traceback_text(error: BaseException) -> str:
    """The traceback of `error` and of its causes, as the reader should see it."""
    report = traceback.TracebackException.from_exception(error, compact=True)
    _shorten(report)
    return _tidy("".join(report.format()))


def fault_text(log: str) -> tuple[str, str]:
    """The text of the interpreter's fault handler in a rank's log, told apart: (other words, stack)."""
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


def _reader_frames(frames: list[traceback.FrameSummary]) -> traceback.StackSummary:
    kept = [frame for frame in frames if not is_library(frame.filename)]
    return traceback.StackSummary.from_list(kept or [f for f in frames if not f.filename.startswith(_OURS)])


def _tidy(text: str) -> str:
    lines = [line for line in text.splitlines() if not _CARETS.match(line)]
    named = _FILE_LINE.sub(lambda match: place(match[1], int(match[2])), "\n".join(lines))
    return _ADDRESS.sub("0x…", _BACKEND_NOISE.sub("", named))


# --- names of tensors -------------------------------------------------------------------------------------------------

_LONGEST = 256
"""Variables of a scope, items of a container and parameters of a module beyond this many are not looked at."""


def names_of(tensor: torch.Tensor, frames: Iterable[FrameType]) -> tuple[str, ...]:
    """All names of `tensor` in the reader's frames, sorted; its expression at the call if no variable holds it."""
    frames = list(frames)
    found = {name for frame in frames for name in _names_in_scope(tensor, _scope(frame))}
    if not found and frames and (text := _argument(frames[0].f_code, frames[0].f_lasti)):
        found = {text}
    return tuple(sorted(found))


def _scope(frame: FrameType) -> Mapping[str, object]:
    """Local variables, and for code of a cell also the globals (few of them are shipped)."""
    if frame.f_locals is frame.f_globals:
        return frame.f_globals
    local = dict(frame.f_locals)
    _forget(frame)
    return {**frame.f_globals, **local} if frame.f_code.co_filename in CELLS else local


def _forget(frame: FrameType) -> None:
    """Empty a function's `f_locals`: up to Python 3.12, a copy that stays with its frame and would keep tensors alive.

    A copy that the reader's code holds as well, since it called `locals()`, stays as it is.
    """
    if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED:
        copy = frame.f_locals
        if sys.getrefcount(copy) == 3:  # the frame's reference, this function's, and the argument of the call
            copy.clear()


def _names_in_scope(tensor: torch.Tensor, scope: Mapping[str, object]) -> Iterator[str]:
    for name, value in islice(scope.items(), _LONGEST):
        if value is tensor:
            yield name
        elif isinstance(value, torch.nn.Module):
            yield from (f"{name}.{inner}" for inner in _names_in_module(tensor, value))
        elif isinstance(value, list | tuple):
            yield from (f"{name}[{index}]" for index, item in enumerate(value[:_LONGEST]) if item is tensor)
        elif isinstance(value, dict) and not name.startswith("__"):
            yield from (f"{name}[{key!r}]" for key, item in islice(value.items(), _LONGEST) if item is tensor)


def _names_in_module(tensor: torch.Tensor, module: torch.nn.Module) -> Iterator[str]:
    for name, parameter in islice(module.named_parameters(), _LONGEST):
        if parameter is tensor:
            yield name
        elif parameter.grad is tensor:
            yield f"{name}.grad"


@lru_cache(maxsize=1024)
def _argument(code: CodeType, instruction: int) -> str:
    """The first argument of the call at `instruction`, as it is written ("layer.weight.grad")."""
    line, end_line, column, end_column = list(code.co_positions())[instruction // 2]
    if line is None or end_line is None or column is None or end_column is None:
        return ""
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(line, end_line + 1)]
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    try:
        call = ast.parse(b"".join(lines).decode().strip(), mode="eval").body
    except SyntaxError:
        return ""
    return ast.unparse(call.args[0]) if isinstance(call, ast.Call) and call.args else ""
