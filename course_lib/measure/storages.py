"""The blocks of memory behind a record, and the largest of them as a table.

Lesson 00 opens this module.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from course_lib.tables import as_html, as_text
from course_lib.units import Bytes


@dataclass(frozen=True)
class LiveStorage:
    """One block of memory that was alive at some moment.

    Attributes:
        name: a parameter's name, or the module and operation that made the block.
        shape, dtype: of the first tensor seen on it.
        category: as in `MemoryAccount`.
        bytes: the size of the whole block.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    category: str
    bytes: Bytes


class LargestStorages(list[LiveStorage]):
    """A list of blocks that prints as a table."""

    def _table(self) -> tuple[list[str], list[list[str]]]:
        rows = [
            [
                b.name,
                "×".join(map(str, b.shape)) or "scalar",
                str(b.dtype).removeprefix("torch."),
                b.category,
                f"{b.bytes}",
            ]
            for b in self
        ]
        return ["block", "shape", "dtype", "category", "bytes"], rows

    def __repr__(self) -> str:
        return as_text(*self._table())

    def _repr_html_(self) -> str:
        return as_html(*self._table())
