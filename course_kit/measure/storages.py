"""Blocks of memory behind tensors: their lives, the largest of them as a table, and the lines that made them."""

from __future__ import annotations

import linecache
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from course_kit.tables import Tabular
from course_kit.units import Bytes


class TrackedStorage(weakref.ref):
    """One block of memory: its life, size and purpose. The object is a weak reference to the block, too.

    Times are row numbers of the timeline: the block is alive in the rows from `born` up to, not including, `died`.
    """

    address: int  #: the key under which the tracker knows the block while it lives
    born: int
    died: int | None  #: None while the block lives
    sizes: list[tuple[int, int]]  #: (row, bytes) for its birth and for every resize
    owner: str  #: "parameters", "gradients" or "optimizer" when the block belongs to one of them, else ""
    saved: list[tuple[int, int | None]]  #: the spans of rows during which autograd held the block
    holders: int  #: the number of nodes of the graph that hold the block now
    line: tuple[str, int, str] | None  #: file, number and function of the block's origin, None if not recorded
    made_by: Any  #: the operation that made the block; None for one from before
    place: str  #: the module or phase that ran at its birth
    name: str  #: the owner's name for the block, or ""
    shape: torch.Size  #: the shape of the first tensor seen on the block
    dtype: torch.dtype  #: the dtype of this tensor
    __slots__ = tuple(__annotations__)

    def spans(self, end: int) -> Iterator[tuple[int, int, str, int]]:
        """The block's life as (first row, row after the last, category, bytes), cut where size or category changes."""
        stop = end if self.died is None else self.died
        if not self.saved and len(self.sizes) == 1:  # most are like this: nothing to cut
            if self.born < stop:
                yield self.born, stop, self.owner or "temporaries", self.sizes[0][1]
            return
        cuts = {self.born, stop, *(row for row, _ in self.sizes)}
        cuts.update(row for span in self.saved for row in span if row is not None)
        for first, last in pairwise(sorted(cuts)):
            # An activation is one from birth, although autograd saves it later.
            saved = any(since <= first and (until is None or first < until) for since, until in self.saved)
            nbytes = next(nbytes for since, nbytes in reversed(self.sizes) if since <= first)
            yield first, last, self.owner or ("activations" if saved else "temporaries"), nbytes

    @property
    def label(self) -> str:
        """The block's name, or its origin: "blocks.0.attention: softmax"."""
        if self.name or self.made_by is None:
            return self.name or "input"
        operation = self.made_by._schema.name.split("::")[-1].strip("_")
        return f"{self.place}: {operation}" if self.place else operation


@dataclass(frozen=True)
class LiveStorage:
    """One block of memory that was alive at some moment."""

    name: str  #: a parameter's name, or the module and operation that made the block
    shape: tuple[int, ...]  #: the shape of the first tensor seen on the block
    dtype: torch.dtype  #: the dtype of this tensor
    category: str  #: as in `MemoryAccount`
    bytes: Bytes  #: the size of the whole block


class LargestStorages(Tabular, list[LiveStorage]):
    """A list of blocks that prints as a table."""

    def _table(self) -> tuple[list[str], list[list[str]]]:
        shapes = ["×".join(map(str, block.shape)) or "scalar" for block in self]
        dtypes = [str(block.dtype).removeprefix("torch.") for block in self]
        rows = [[b.name, shape, dtype, b.category, f"{b.bytes}"] for b, shape, dtype in zip(self, shapes, dtypes)]
        return ["block", "shape", "dtype", "category", "bytes"], rows


def tensors_in(values: Any) -> list[Tensor]:
    """All tensors among an operation's arguments or results: one, or those in lists and tuples."""
    if isinstance(values, Tensor):
        return [values]
    if not isinstance(values, (list, tuple)):
        return []
    return [tensor for value in values for tensor in tensors_in(value)]


def plain_tensors(tensor: Tensor) -> Iterable[Tensor]:
    """The tensor itself, or for a wrapper like DTensor the plain tensors inside."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return (tensor,)
    parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]  # type: ignore[attr-defined]
    return [plain for part in parts if isinstance(part, Tensor) for plain in plain_tensors(part)]


_COURSE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "course_")  # kit, lib, pages, tools
_OTHERS = (os.path.dirname(torch.__file__) + os.sep, _COURSE, "<frozen ")
"""The beginnings of file names whose lines the reader of a record has not written: PyTorch's, and the course's."""


def line_now() -> tuple[str, int, str] | None:
    """File, number and function of the innermost line at work outside of PyTorch and the course.

    A backward pass on the CPU runs in the thread that called it, so its tensors belong to the line of that call.
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
