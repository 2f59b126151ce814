"""Which line is at work while an operation runs, and how a message names it."""

from __future__ import annotations

import linecache
import os
import sys

import torch

_OTHERS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep, "<frozen ")
"""Where files begin whose lines the reader of a record has not written: PyTorch's, and this package's."""


def line_now() -> tuple[str, int, str] | None:
    """File, number and function of the innermost line at work outside of PyTorch and this package.

    A backward pass on the CPU runs in the thread that called it, so what it makes belongs to the line that called it.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OTHERS):
        frame = frame.f_back
    return frame and (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def line_text(file: str, number: int, function: str) -> str:
    """A line as its author finds it again: "line 7 of add: kept = x.clone()"."""
    text = linecache.getline(file, number).strip()
    where = f"line {number}" if function.startswith("<") else f"line {number} of {function}"
    return f"{where}: {text}" if text else where
