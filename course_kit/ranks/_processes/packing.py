"""Packing a call for its ranks: the function, its arguments, and the state of the notebook on which they rely.

`cloudpickle` ships functions by value when they are defined in a cell, and by name when they live in a module. Where
a value cannot be shipped, the error names the variable: "cannot pickle '_thread.lock' object" alone is no help.

Two rules are our own: a tensor on a GPU travels through the CPU, a module by its name. An argument on the notebook's
GPU arrives in each rank on the rank's own device; a result on a rank's GPU arrives in the notebook on the CPU.
Otherwise every rank would open a context on the sender's GPU, which costs hundreds of MB each, and with NCCL the tensor
would be on the wrong device. And code that names `dist` and anything called `config` takes the module
`torch.distributed.config` along, of a class that cloudpickle does not know as a module's.
"""

from __future__ import annotations

import importlib
import inspect
import io
import linecache
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from course_kit.cells import cell_label, is_cell
from course_kit.ranks._diagnosis import stacks
from course_kit.ranks._processes.inside import device


def pack(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The call as bytes.

    Raises:
        ValueError: a part of the call cannot be shipped; the message names the variable.
    """
    try:
        return dumps((fn, args, kwargs))
    except Exception as error:
        culprit = _culprit(fn, args, kwargs)
        if culprit is None:
            raise
        name, value, reason = culprit
        raise ValueError(
            f"{name} cannot be shipped to the ranks: it is a {type(value).__name__}, which belongs to this process "
            f"({reason}). Create it inside the function, so that every rank has its own, or pass what it is made from."
        ) from error


def _culprit(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any, str] | None:
    """The first variable of the call that does not pickle: its name in words, its value, and the reason."""
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # the call does not fit the signature: the ranks will say so
        bound = {**{f"number {index}": value for index, value in enumerate(args)}, **kwargs}
    arguments = ((f"the argument {name!r}", value) for name, value in bound.items())
    for name, value in [*arguments, *_used_by(fn, set())]:
        try:
            dumps(value)
        except Exception as error:
            return name, value, re.sub(r" at 0x[0-9a-f]+", "", str(error))
    return None


def _used_by(fn: object, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The globals and enclosed variables that a function of the notebook uses, those of its helpers first."""
    fn = getattr(fn, "__func__", fn)
    if not isinstance(fn, types.FunctionType) or id(fn) in seen:
        return
    seen.add(id(fn))
    used = {name: fn.__globals__[name] for name in _names(fn.__code__) if name in fn.__globals__}
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    enclosed = {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}  # if assigned yet
    for kind, variables in (("global", used), ("enclosed", enclosed)):
        for name, value in variables.items():
            if not isinstance(value, types.ModuleType):
                yield from _used_by(value, seen)
                yield f"the {kind} variable {name!r}, which {fn.__name__}() uses,", value


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


@dataclass
class NotebookState:
    """The state of the notebook that a rank needs besides the call; only changes since the last call travel.

    Attributes:
        cells: sources of notebook cells: file name → (label, source), for tracebacks and `inspect.getsource`.
        surroundings: the notebook's `sys.path`, working folder and environment variables, or None if all are unchanged.
        stale: modules to forget, because the reader edited their files.
    """

    cells: dict[str, tuple[str, str]]
    surroundings: tuple[list[str], str, dict[str, str]] | None
    stale: list[str]


class NotebookStateTracker:
    """Remembers the state that one group of ranks was told, and so finds the changes that are news to the group."""

    def __init__(self) -> None:
        self._cells: set[str] = set()
        self._surroundings: object = None
        self._modules: dict[str, float] = {}
        self._loaded: object = None

    def news(self) -> NotebookState:
        """The changes since the last time."""
        before, now = self._surroundings, (list(sys.path), os.getcwd(), dict(os.environ))
        self._surroundings = now
        return NotebookState(self._new_cells(), None if now == before else now, self._edited_modules())

    def _new_cells(self) -> dict[str, tuple[str, str]]:
        news = {}
        for filename in list(linecache.cache):
            if filename not in self._cells and is_cell(filename):
                self._cells.add(filename)
                news[filename] = (cell_label(filename), "".join(linecache.getlines(filename)))
        if news:  # or each call would clear the caches of `stacks`
            stacks.know_cells(news)
        return news

    def _edited_modules(self) -> list[str]:
        """All modules of the reader's, if one of their files changed (others may have imported names from it)."""
        if (loaded := (len(sys.modules), next(reversed(sys.modules)))) != self._loaded:  # one may have taken a place
            self._loaded = loaded
            self._modules = {name: _modified(name) for name in _reader_modules()} | self._modules
        before = self._modules
        # A module that is no longer loaded has no news; one whose file is gone has: it may be a package now.
        self._modules = {name: _modified(name) if sys.modules.get(name) else time for name, time in before.items()}
        return list(before) if self._modules != before else []


def _reader_modules() -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        is_on_disk = isinstance(file, str) and os.path.isabs(file)
        if is_on_disk and name not in ("__main__", "__mp_main__") and not stacks.is_library(file):
            yield name


def _modified(module: str) -> float:
    """The time at which a module's file was written last; 0 if module or file is gone."""
    try:
        return os.stat(sys.modules[module].__file__).st_mtime  # type: ignore[arg-type]
    except (AttributeError, KeyError, OSError, TypeError):
        return 0.0


def dumps(value: object) -> bytes:
    """The bytes of `value`; functions and classes of a notebook go by value."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


loads = cloudpickle.loads


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and _is_on_accelerator(obj):
            kind = torch.nn.Parameter if isinstance(obj, torch.nn.Parameter) else torch.Tensor
            return _on_own_device, (obj.detach().cpu(), obj.requires_grad, kind)
        is_odd_module = isinstance(obj, types.ModuleType) and type(obj) is not types.ModuleType
        if is_odd_module and sys.modules.get(obj.__name__) is obj:
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)


def _is_on_accelerator(tensor: torch.Tensor) -> bool:
    return tensor.device.type not in ("cpu", "meta")


def _on_own_device(tensor: Any, requires_grad: bool, kind: type) -> Any:
    """The tensor on the device of this process, which receives the tensor."""
    here = tensor.to(device())
    return here.requires_grad_(requires_grad) if kind is type(here) else kind(here, requires_grad=requires_grad)
