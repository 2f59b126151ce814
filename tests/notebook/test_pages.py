"""What `show`, `compare` and `self_check` return must be seen: Jupyter displays a cell's last expression only.

And a question stands alone: a reader guesses before the cell that answers runs, and before a listing distracts.
"""

import ast
from pathlib import Path

import pytest

from course_tools.author.source import read_cells

READS = ("lessons/src/*.py", "solutions/src/*.py", "lessons/*.ipynb", "labs/*/*.ipynb", "solutions/*/*.ipynb")
ROOT = Path(__file__).parents[2]
SHOWN = {"show", "compare", "self_check"}


def lost(code: str) -> list[str]:
    """Calls whose result nobody sees: statements of their own before the last one, without `display(...)`."""
    calls = [line.value for line in ast.parse(code).body[:-1] if isinstance(line, ast.Expr)]
    called = [call for call in calls if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)]
    return [ast.unparse(call) for call in called if ast.unparse(call.func) in SHOWN]


@pytest.mark.parametrize("source", sorted(ROOT.glob("*/src/*.py")), ids=lambda source: source.stem)
def test_no_page_loses_what_it_shows(source: Path) -> None:
    cells = [cell.source for cell in read_cells(source) if cell.cell_type == "code"]
    assert [call for code in cells for call in lost(code)] == []


def test_a_lost_call_is_found() -> None:
    assert lost("show(len)\nx = 1") == ["show(len)"]
    assert lost("display(show(len))\nx = show(len)\ncompare(predicted=1, measured=1)") == []


def is_question(line: ast.stmt) -> bool:
    return isinstance(line, ast.Assign) and ast.unparse(line.value).startswith("ask(")


@pytest.mark.parametrize("source", sorted(ROOT.glob("lessons/src/*.py")), ids=lambda source: source.stem)
def test_a_question_has_a_cell_of_its_own(source: Path) -> None:
    cells = [ast.parse(cell.source).body for cell in read_cells(source) if cell.cell_type == "code"]
    asking = [cell for cell in cells if any(map(is_question, cell))]
    assert asking and [ast.unparse(line) for cell in asking for line in cell if not is_question(line)] == []
