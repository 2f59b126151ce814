"""The marks in a lab's source: `### BEGIN SOLUTION`, `### BEGIN HIDDEN TESTS` and their ends.

nbgrader cuts out the lines between them, and passes over a mark that it does not recognise: then students would get
hidden tests to read, or an answer cell without the line that says `def`. So every mark is looked at before.

INSTRUCTORS.md shows the marks in a lab.
"""

from __future__ import annotations

import re

BEGIN_SOLUTION, END_SOLUTION = "### BEGIN SOLUTION", "### END SOLUTION"
BEGIN_HIDDEN, END_HIDDEN = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
TOPIC = "#:"
"""Begins a line inside hidden tests: the topic of those below, in words of the comment that students see."""
MAGIC = "%%check"
"""The first line of a check in a notebook: `course_kit.checks.isolated_cell` runs the lines below."""
_ALIKE = re.compile(r"^#+ *(begin|end)[ _-]*(solution|hidden)", re.I)


def check_marks(source: str, *, answer: bool, check: bool, code: bool) -> None:
    """Look at the marks of one cell.

    Args:
        source: the cell's text.
        answer, check: whether students fill the cell in; whether the cell earns points.
        code: whether this is a code cell. Text that students write may stand without marks: then all is replaced.

    Raises:
        ValueError: a mark is misspelt, alone, missing, or in a cell where it means nothing.
    """
    marks = [line.strip() for line in source.splitlines() if _ALIKE.match(line.strip())]
    for word, begin, end, belongs, cell in (
        ("SOLUTION", BEGIN_SOLUTION, END_SOLUTION, answer, 'answer="q1"'),
        ("HIDDEN", BEGIN_HIDDEN, END_HIDDEN, check, 'check="q1-hidden"'),
    ):
        own = [mark for mark in marks if word in mark.upper()]
        for mark in own:
            if mark not in (begin, end):
                raise ValueError(f"{mark!r} is no mark; write {begin!r} or {end!r}")
        if own != [begin, end] * (len(own) // 2):
            raise ValueError(f"each {begin!r} needs an {end!r} after it; there are {', '.join(own)}")
        if own and not belongs:
            raise ValueError(f"{begin!r} belongs into a cell that is marked {cell}")
        if answer and code and begin == BEGIN_SOLUTION and not own:
            raise ValueError(f"put {begin!r} and {end!r} around what students are to write; all else they get")
