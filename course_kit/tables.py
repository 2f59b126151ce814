"""Tables as text and as HTML, laid out in one way: the first column flush left, all others flush right."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence

_STYLE = "padding:.3em .7em;text-align:"  # headings wrap in a narrow window, so that numbers need not
_MARK = ";outline:2px solid #d55e00"


class Tabular:
    """A thing that renders itself as a table: HTML as the last expression of a cell, text elsewhere."""

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """The header, and the cells of each row."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return as_text(*self._table())

    def _repr_html_(self) -> str:
        return as_html(*self._table())


def as_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table in columns of equal width.

    Raises:
        ValueError: a row is not as long as the header.
    """
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines]
    return "\n".join(text)


def as_html(header: Sequence[str], rows: Sequence[Sequence[str]], marked: Collection[int] = ()) -> str:
    """The table in HTML; the first cell of each row is its heading. A table that is too wide for the page scrolls.

    Rows with the numbers in `marked` get an outline.
    """
    head = "".join(f'<th scope="col" style="{_STYLE}right">{html.escape(text)}</th>' for text in header)
    body = "".join(_row(row, _MARK if number in marked else "") for number, row in enumerate(rows))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div style="max-width:100%;overflow-x:auto">{table}</div>'


def _row(cells: Sequence[str], style: str) -> str:
    name, *rest = map(html.escape, cells)
    tds = "".join(f'<td style="{_STYLE}right;white-space:nowrap">{text}</td>' for text in rest)
    return f'<tr style="{style}"><th scope="row" style="{_STYLE}left">{name}</th>{tds}</tr>'
