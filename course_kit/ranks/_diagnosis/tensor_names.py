"""What the reader's code calls a tensor.

With the names, ranks that reduce `a` and `b` in different orders can be told apart from ranks that agree: the backend
sees two tensors of the same shape and sums them in silence.

Used in the ranks, for diagnosis.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from inspect import CO_OPTIMIZED
from itertools import islice
from types import CodeType, FrameType

import torch

from course_kit.ranks._diagnosis.stacks import CELLS

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
    """Up to Python 3.12, a function's `f_locals` is a copy that stays with its frame: it would keep tensors alive.

    Not forgotten is a copy that the reader holds as well, since he called `locals()`.
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
