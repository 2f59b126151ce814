"""Cells as the grader sees them: the text that is run for each, and whether a student wrote it."""

from __future__ import annotations

from nbformat import NotebookNode

from course_tools.author.lab_source import is_answer, is_check
from course_tools.author.marks import BEGIN_HIDDEN, END_HIDDEN

GUARD = "__import__('course_tools.grading.sandbox.guard', fromlist=['the_guard'])"
"""The expression with which a kernel names the module that guards the checks."""


_ISOLATED = "__import__('course_kit.checks.isolated_cell', fromlist=['run'])"

FAILED_LINE = f"raise LookupError({_ISOLATED}.failed_line)"
"""Raises the number of the line at which the check that has just failed did so."""


def first_line(cell: NotebookNode) -> str:
    """The first line of a cell that is no comment, by which students find the cell in their own notebooks."""
    lines = (line.strip() for line in cell.source.splitlines())
    return next((line for line in lines if line and not line.startswith(("#", "%"))), "")


def source_of(cell: NotebookNode) -> str:
    """A cell's text, and for the lab's own cells the line that remembers the names that the cell has bound."""
    own_language = cell.source.startswith("%%")
    return cell.source if own_language or is_students(cell) else f"{cell.source}\n{remember(cell)}"


def isolated(cell: NotebookNode) -> str:
    """The line that runs a check in a copy of the notebook's names, as `%%check` does."""
    return f"{_ISOLATED}.run({cell.source!r}, __import__('builtins').globals(), {kept(cell)!r})"


def kept(cell: NotebookNode) -> list[str]:
    """The functions of a check that later cells need."""
    return list(cell.metadata.get("course", {}).get("keeps", []))


def stopped(name: str) -> str:
    """A function of that name that raises an error at once."""
    return f"def {name}(*_, **__): raise TimeoutError('{name} was stopped before: it did not end in time')"


def remember(cell: NotebookNode) -> str:
    """The line that remembers the names that a cell of the lab has bound."""
    binds = list(cell.metadata.get("course", {}).get("binds", []))
    names = [name for name in binds if name in kept(cell)] if is_check(cell) else binds
    return f"{GUARD}.the_guard().given({names!r})" if names else ""


def last_line(number_once: str) -> str:
    """An assert that must fail, with a number that no answer knows."""
    return f"assert not {GUARD}.the_guard().sound({number_once!r}), {number_once!r}"


def is_students(cell: NotebookNode) -> bool:
    """Whether a student wrote the cell."""
    return is_answer(cell) or "extra" in cell.metadata.get("course", {})


def hidden_lines(cell: NotebookNode) -> list[str]:
    """The lines of a check that no student may see."""
    _, _, tests = cell.source.partition(BEGIN_HIDDEN)
    return tests.partition(END_HIDDEN)[0].splitlines()
