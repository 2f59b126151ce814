"""A failed check of a lab in words: the expected value, the one that came, a place to look at; never the answer."""

from __future__ import annotations

import linecache
import re
import traceback
from typing import NoReturn

import torch
from torch import Tensor

from course_kit.cells import is_cell
from course_kit.checks.held_bytes import HeldBytes

LONGEST = 300
"""Characters of a value that a message quotes."""

_STUB = re.compile(r"^ +raise NotImplementedError *(?:#.*)?\n(?:[ ^~]+\n)?NotImplementedError\s*\Z", re.MULTILINE)


class CheckFailed(AssertionError):
    """A check of a lab did not hold. The text is the whole story; the stack would only show the checker's insides."""

    def _render_traceback_(self) -> list[str]:
        return [f"CheckFailed: {self}"]


_begun = ""  # the last line of a check that held: the next one may continue it


def passed(what: str) -> None:
    """Print the line of a check that holds; the next check's may begin with "…" and continue it."""
    global _begun
    _begun = _begun if what.startswith("…") else what
    print(f"✓ {what}")


def fail(what: str, *, expected: str = "", came: str = "", look: str = "") -> NoReturn:
    """Raise a `CheckFailed` in the one form of all of them. A `what` that begins with "…" continues the line before."""
    what = f"{_begun} {what}" if what.startswith("…") and _begun else what
    parts = {"expected": expected, "came": came, "look at": look}
    lines = [f"  {name:<8}  {text}" for name, text in parts.items() if text]
    raise CheckFailed("\n".join([what, *lines])) from None


def describe(value: object) -> str:
    """A value in a few words: numbers in full, tensors by dtype and shape, long things cut."""
    if isinstance(value, Tensor) and type(value) in (Tensor, torch.nn.Parameter):
        head = f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
        return f"{head} {value.tolist()}" if value.numel() <= 8 else head
    if isinstance(value, Tensor):
        return f"a {type(value).__name__}"  # a class of the student's own may answer anything
    if type(value) is HeldBytes:
        return value.words
    if isinstance(value, float | int | bool | type(None) | torch.dtype):
        return repr(value)
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    if isinstance(value, list | tuple | dict | set) and len(value) > 16:
        return f"a {type(value).__name__} of {len(value)}"
    try:
        text = repr(value)
    except Exception as problem:  # a student's __repr__ may do anything
        text = f"a {type(value).__name__} whose repr raises {type(problem).__name__}"
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def call_text(fn: object, args: tuple, kwargs: dict) -> str:
    """A call as one would write it, with short arguments."""
    given = [describe(arg) for arg in args] + [f"{name}={describe(value)}" for name, value in kwargs.items()]
    text = f"{describe(fn)}({', '.join(given)})"
    return text if len(text) <= LONGEST else f"{describe(fn)}(…)"


def where(problem: BaseException) -> str:
    """The last line of a notebook cell that an exception passed through, with its text."""
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if is_cell(frame.filename)]
    if not frames:
        return ""
    line = linecache.getline(frames[-1].filename, frames[-1].lineno or 0).strip()
    return f"line {frames[-1].lineno} of {frames[-1].name}: {line}" if line else ""


def is_stub(problem: BaseException | str) -> bool:
    """Whether an error, or its traceback, ends at a stub's bare `raise`. PyTorch has such errors of its own."""
    told = problem if isinstance(problem, str) else "".join(traceback.format_exception(problem))
    return _STUB.search(told) is not None


def told_on_a_rank(text: str) -> str:
    """The message of a check that failed inside a rank with this traceback; "" if another error ended the rank."""
    return text.partition(f"{CheckFailed.__module__}.{CheckFailed.__name__}: ")[2].strip()
