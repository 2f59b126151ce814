"""Tables: one layout as text and as HTML, and at hand without the rest of the library."""

import subprocess
import sys
from html.parser import HTMLParser

import pytest

from course_kit import tables
from course_kit.accounts import MemoryAccount
from course_kit.compare import compare
from course_kit.units import Bytes, Seconds
from course_pages.lesson05.pictures import Ladder, Rung

HEADER, ROWS = ("", "bytes", "share"), [("a <b>", "1,024", "9 %"), ("longer", "8", "")]


class Cells(HTMLParser):
    """The texts of a table's cells, row by row, and the scopes of its headings."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.scopes: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")
            self.scopes += [dict(attrs).get("scope")] if tag == "th" else []

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_text_stands_in_columns_without_spaces_at_the_end() -> None:
    text = "        bytes  share\na <b>   1,024    9 %\nlonger      8"
    assert tables.as_text(HEADER, ROWS) == text
    assert tables.as_text(HEADER, []) == "  bytes  share"
    with pytest.raises(ValueError, match="shorter"):
        tables.as_text(HEADER, [("a", "1")])


def test_html_has_the_same_cells_names_columns_and_rows_and_outlines_a_marked_row() -> None:
    cells = Cells(tables.as_html(HEADER, ROWS))
    assert cells.rows == [list(HEADER), *map(list, ROWS)]
    assert cells.scopes == ["col", "col", "col", "row", "row"]
    first, second = tables.as_html(HEADER, ROWS, marked=[1]).split("<tr")[2:]
    assert "outline" not in first and "outline" in second
    assert second.endswith("</table></div>")


def test_what_renders_itself_has_one_layout() -> None:
    account = MemoryAccount(parameters=Bytes(8))
    for shown in (compare(predicted=1, measured=1), Ladder([Rung("plain", account, Seconds(1))])):
        head, *rows = Cells(shown._repr_html_()).rows
        assert repr(shown) == tables.as_text(head, rows)


def test_compare_and_tables_do_not_wait_for_what_measures() -> None:
    code = "import sys, course_kit.compare; print([name for name in sys.modules if name.startswith('course_kit.m')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
