"""`%%check`: a cell whose names are gone when it has run, and which no answer can read meanwhile.

    %%check keeps check_values
    expected = 3
    check.equal(check.call(answer), expected, "three")

A check binds the values it expects. If these stood among the notebook's names, an answer that by mistake (or not) uses
a name like `expected` would be right as long as the check is. So a check runs in a copy of the notebook's names.
Functions and classes that later checks need are named behind `keeps`; those become the notebook's own.
"""

from __future__ import annotations

import ast
import itertools
import traceback
from collections.abc import Collection
from typing import Any

from course_kit.cells import add_magic, remember

_numbers = itertools.count(1)

failed_line = 0
"""The line at which the last check failed, counted in the check's text."""


def run(source: str, names: dict[str, Any], keeps: Collection[str] = ()) -> None:
    """Run a check's text.

    Args:
        names: the notebook's names, which the text reads and does not bind anew.
        keeps: functions, classes and imports of the text that become the notebook's own.

    Raises:
        SyntaxError: the text is not Python.
        Exception: the check's own error; `failed_line` has its line.
    """
    global failed_line
    file = f"<check {next(_numbers)}>"
    remember(file, source)
    body = ast.parse(source, file).body
    lasting = [node for node in body if not defines(node).isdisjoint(keeps)]
    exec(compile(ast.Module(lasting, []), file, "exec"), names)
    passing = [node for node in body if node not in lasting]
    try:
        exec(compile(ast.Module(passing, []), file, "exec"), dict(names))  # the copy: names bound here go with it
    except BaseException as problem:
        frames = traceback.extract_tb(problem.__traceback__)
        failed_line = next((each.lineno or 0 for each in frames if each.filename == file), 0)
        raise


def run_cell(line: str, cell: str, names: dict[str, Any]) -> None:
    """Run this cell in a copy of the notebook's names: %%check [keeps NAME, …]."""
    run("\n" + cell, names, line.replace(",", " ").split()[1:])  # the line of the magic counts, too


def defines(node: ast.stmt) -> set[str]:
    """The names of a function, a class or an import; none for other statements."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return {node.name} if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else set()


add_magic("check", "cell", run_cell)
