"""Tables of what was measured, as text and as HTML.

Lesson 00 opens this module.
"""

from __future__ import annotations

import html
from dataclasses import dataclass

import torch

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


def as_text(header: list[str], rows: list[list[str]]) -> str:
    """A table in columns, the first one flush left."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in (header, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


def as_html(header: list[str], rows: list[list[str]]) -> str:
    """The same table in HTML; the first cell of each row is its heading."""
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row" style="text-align: left">{html.escape(row[0])}</th>'
        + "".join(f'<td style="text-align: right">{html.escape(cell)}</td>' for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
