"""Run a lab's cells in this process, with answers of one's own: much faster than a kernel, the same checks."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import linecache
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from nbformat import NotebookNode

from course_tools.author.code import bound, definitions, loaded, read
from course_tools.author.lab_source import (
    grade_id_of,
    is_answer,
    is_check,
    questions,
    read_lab,
    student_version,
)
from course_tools.author.source import read_cells
from course_tools.labs import Lab

_SURELY = (ast.Assign, ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
"""Statements after which the names that they bind are bound; those in an `if` or a `for` perhaps."""

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Mutant:
    """A known-wrong answer: which checks must fail, and exactly those."""

    path: Path
    loses: frozenset[str]
    answers: dict[str, str]


def read_mutant(path: Path) -> Mutant:
    """A py:percent file: a docstring, `LOSES = {...}`, and one or more cells `# %% answer="q1"`."""
    head, *cells = read_cells(path)
    given: dict[str, Any] = {}
    exec(head.source, given)
    assert given["__doc__"], f"{path.name} does not say what is wrong with it"
    return Mutant(path, frozenset(given["LOSES"]), {cell.metadata["answer"]: cell.source for cell in cells})


def run_lab(lab: Lab, answers: dict[str, str] | None = None, *, stubs: bool = False) -> dict[str, str]:
    """Run every cell, checks and hidden tests included.

    Args:
        lab: which.
        answers: grade_id → source, instead of the solution's. Then only the checks that one of these answers can
            reach are run, and what they need: what no name leads to cannot see it, a picture decides nothing, and the
            solution's own run has been through both.
        stubs: begin with the students' stubs instead of the solution.

    Returns:
        grade_id of each check that failed → what it said.
    """
    key = read_lab(lab)
    given = {cell.id: cell.source for cell in (student_version(key) if stubs else key).cells if is_answer(cell)}
    if unknown := set(answers or {}) - {grade_id_of(cell) for cell in key.cells if is_answer(cell)}:
        raise ValueError(f"{lab.name} has no answer cell {', '.join(unknown)}")
    cells = [cell for cell in key.cells if cell.cell_type == "code" and "google.colab" not in cell.source]
    steps = [(cell, (answers or {}).get(grade_id_of(cell)) or given.get(cell.id, cell.source)) for cell in cells]
    if answers:
        steps = _needed(steps, _reached(steps, set(answers)))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    failures = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for cell, source in steps:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                _execute(source, namespace)
        except Exception as problem:
            if is_check(cell):
                failures[grade_id_of(cell)] = f"{type(problem).__name__}: {problem}"
            elif not _may_fail(cell, stubs or answers):
                raise
    torch.set_num_threads(threads)
    return failures


def all_checks(lab: Lab) -> set[str]:
    """The grade_ids of every check."""
    return {check.grade_id for question in questions(read_lab(lab)) for check in question.checks}


def public_checks(lab: Lab) -> set[str]:
    """The grade_ids of the checks that students see."""
    return {check.grade_id for question in questions(read_lab(lab)) for check in question.checks if not check.hidden}


def _reached(steps: list[tuple[NotebookNode, str]], answers: set[str]) -> set[str]:
    """Cell ids of the checks that read, or bind again, a name of these answers, directly or through other cells."""
    names: set[str] = set()
    checks = set()
    for cell, source in steps:
        if grade_id_of(cell) in answers or (read(source) | bound(source)) & names:
            names |= bound(source)
            checks |= {cell.id} if is_check(cell) else set()
    return checks


def _needed(steps: list[tuple[NotebookNode, str]], judging: set[str]) -> list[tuple[NotebookNode, str]]:
    """The checks `judging`, and above them the last cells to bind each name that they need, directly or not.

    Of other checks the functions alone, as when the grader starts a new kernel.
    """
    kept: list[tuple[NotebookNode, str]] = []
    wanted: set[str] = set()
    for cell, source in reversed(steps):
        judges = cell.id in judging
        source = definitions(source) if is_check(cell) and not judges else source
        if judges or bound(source) & wanted:
            kept.append((cell, source))
            wanted = _before(source, wanted)
    return kept[::-1]


def _before(source: str, wanted: set[str]) -> set[str]:
    """The names that must be bound before this cell runs, if `wanted` must be bound after it."""
    for statement in reversed(ast.parse(source).body):
        text = ast.unparse(statement)
        if isinstance(statement, _SURELY):
            wanted = wanted - bound(text)
        wanted = wanted | (loaded(text) if isinstance(statement, ast.Assign) else read(text))
    return wanted


def _may_fail(cell: NotebookNode, changed: object) -> bool:
    """A cell that shows the answer at work fails with a wrong answer; that costs nothing."""
    return bool(changed) or "raises-exception" in cell.metadata.get("tags", [])


def _execute(source: str, namespace: dict[str, Any]) -> None:
    name = f"<cell {next(_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for inspect.getsource
    exec(compile(source, name, "exec"), namespace)
