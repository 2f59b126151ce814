"""A picture is shown by the last expression of a cell, or by `.show()`; anywhere else it would be drawn for nobody."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import jupytext
import pytest

READS = ("lessons/*.ipynb", "lessons/src/*", "labs/*/*", "solutions/**/*", "course_pages/lesson*/*.py")
ROOT = Path(__file__).parents[2]
SOURCES = sorted([*ROOT.glob("lessons/src/*.py"), *ROOT.glob("solutions/src/*.py")])


@cache
def makers() -> set[str]:
    """Names of all functions and methods of the pages that return a picture."""
    nodes = [node for path in ROOT.glob("course_pages/*/*.py") for node in ast.walk(ast.parse(path.read_text()))]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.returns]
    return {node.name for node in functions if ast.unparse(node.returns or node) == "Picture"}


def forgotten(cell: str) -> list[str]:
    """The pictures that a cell makes as a statement and does not show."""
    tree = ast.parse("\n".join("" if line.startswith(("%", "!")) else line for line in cell.splitlines()))
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and node not in tree.body[-1:]]
    calls = [value.func for value in statements if isinstance(value, ast.Call)]
    names = [func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls]
    return [name for name in names if name in makers()]


def test_a_forgotten_picture_is_found() -> None:
    assert forgotten("figures.number_lines(caption='c')\nx = 1") == ["number_lines"]
    assert forgotten("for record in records:\n    memory_timeline(record)") == ["memory_timeline"]
    assert not forgotten("memory_timeline(record).show()\nnumber_lines(caption='c')")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_picture_is_forgotten(source: Path) -> None:
    cells = [cell.source for cell in jupytext.read(source).cells if cell.cell_type == "code"]
    assert [name for cell in cells for name in forgotten(cell)] == []
