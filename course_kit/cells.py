"""Cells of a notebook, as Python sees them: files that are on no disk, whose text tracebacks must find all the same.

This module alone knows which files are cells, the words for them in a message, and how IPython learns a magic.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
from collections.abc import Callable
from typing import Any, Literal

_CELL = re.compile(r"ipykernel_|ipython-input-|^<(?!frozen )")
_NUMBERED = re.compile(r"ipython-input-(\d+)-")


def is_cell(filename: str) -> bool:
    """Whether a file is a cell of a notebook, or another text that was compiled and is on no disk."""
    entry = linecache.cache.get(filename, ())
    return bool(_CELL.search(filename)) or (len(entry) == 4 and entry[1] is None)  # a text without a time of change


def cell_label(filename: str) -> str:
    """The words for a cell in a message: `cell [5]` when IPython knows its number, else `cell`."""
    if match := _NUMBERED.search(filename):
        return f"cell [{match[1]}]"
    number = _number(filename)
    return "cell" if number is None else f"cell [{number}]"


def _number(filename: str) -> int | None:
    """The number of a cell's last run, found by its text: IPython 7, which Colab has, keeps no other trace of it."""
    source = "".join(linecache.getlines(filename)).rstrip("\n")
    ran = getattr(getattr(running_shell(), "history_manager", None), "input_hist_parsed", [])
    numbers = [number for number, text in enumerate(ran) if number and text.rstrip("\n") == source]
    return numbers[-1] if numbers else None


def remember(filename: str, source: str) -> None:
    """Let tracebacks and `inspect.getsource` find the text of a file that is on no disk."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


def add_magic(name: str, kind: Literal["line", "cell"], run: Callable[..., Any], to: Any = None) -> None:
    """Make the line magic `%name` or the cell magic `%%name` known to IPython, if that runs.

    Args:
        run: called with the text behind the name, for a cell also with the text below that line, and then with the
            notebook's names.
        to: another shell than the one that runs.
    """
    shell = to or running_shell()
    if shell is not None:
        magic = functools.wraps(run)(lambda *text: run(*text, shell.user_ns))
        shell.register_magic_function(magic, kind, name)


def running_shell() -> Any:
    """IPython's shell if this process runs in one, else None."""
    ipython = sys.modules.get("IPython")  # a process that runs in IPython has imported the module
    return ipython.get_ipython() if ipython is not None else None
