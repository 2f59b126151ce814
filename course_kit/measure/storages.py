"""The blocks of memory behind tensors, and the largest of a record as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_kit.tables import as_html, as_text
from course_kit.units import Bytes


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


def tensors_in(values: Any) -> list[Tensor]:
    """All tensors in what an operation takes or returns: one, or lists and tuples of them."""
    if isinstance(values, Tensor):
        return [values]
    found: list[Tensor] = []
    if isinstance(values, (list, tuple)):
        for value in values:
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, (list, tuple)):
                found.extend(tensors_in(value))
    return found


def plain_tensors(tensor: Tensor) -> Iterable[Tensor]:
    """The tensor itself, or for a wrapper like DTensor the plain tensors that it is made of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return (tensor,)
    parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]  # type: ignore[attr-defined]
    return [plain for part in parts if isinstance(part, Tensor) for plain in plain_tensors(part)]
