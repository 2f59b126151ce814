"""The names of a check that stay when it has run: the functions that later cells read, and nothing else.

A check runs in a copy of the notebook's names (`course_kit.checks.isolated_cell`), so that no answer can read the
expected values. Students see that as a first line, `%%check`; the grader needs no such line.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence

from nbformat import NotebookNode

from course_tools.author.code import bound, definitions, parse, read
from course_tools.author.marks import BEGIN_HIDDEN, MAGIC, TOPIC

_read = functools.lru_cache(maxsize=1024)(read)
"""Reads a cell once, although every check above asks for the names that the cell reads."""


def kept_names(cell: NotebookNode, later: Sequence[NotebookNode]) -> list[str]:
    """Functions, classes and imports of a check that later cells read, and those of the check that these read."""
    uses = _uses(cell.source)
    found: set[str] = set()
    waiting = set().union(*(_read(other.source) for other in later), set()) & uses.keys()
    while waiting:
        found |= waiting
        waiting = {name for one in waiting for name in uses[one] & uses.keys()} - found
    return sorted(found)


@functools.lru_cache(maxsize=1024)
def _uses(source: str) -> dict[str, set[str]]:
    """The names that each function, class and import of a check reads."""
    tree = parse(source)
    return {name: _read(ast.unparse(node)) for node in (tree.body if tree else []) for name in _defines(node)}


def lost_names(cell: NotebookNode, later: Sequence[NotebookNode]) -> Iterator[str]:
    """Complaints about functions of a check that stay, and read variables that go."""
    tree, kept = parse(cell.source), set(kept_names(cell, later))
    values = bound(cell.source) - bound(definitions(cell.source))
    for node in tree.body if tree else []:
        if names := _defines(node) & kept:
            for lost in sorted(read(ast.unparse(node)) & values):
                yield f"{', '.join(names)} reads {lost}, a variable of the same check, which is gone after it"


def topic_of(cell: NotebookNode, line: int = 0) -> str:
    """The topic of a check's hidden tests, as students read it: the comment above them, or nothing.

    Args:
        cell: the check.
        line: a line of the cell's text; where marks divide the tests, their topic is a part of that comment.
    """
    above = cell.source.partition(BEGIN_HIDDEN)[0].splitlines()
    whole = " ".join(text.lstrip("# ").strip() for text in above if text.startswith("#"))
    marks = (text.strip() for text in reversed(cell.source.splitlines()[:line]))
    part = next((text.removeprefix(TOPIC).strip() for text in marks if text.startswith(TOPIC)), "")
    return f"{part[:1].upper()}{part[1:]}." if part else whole


def topic_complaints(cell: NotebookNode) -> Iterator[str]:
    """Complaints about topics in hidden tests that the comment above lacks: students would read of them in feedback."""
    whole = topic_of(cell).casefold()
    for text in map(str.strip, cell.source.splitlines()):
        if text.startswith(TOPIC) and text.removeprefix(TOPIC).strip().casefold() not in whole:
            yield f"the topic {text!r} does not stand in the comment above the hidden tests, {whole!r}"


def announce(cell: NotebookNode) -> None:
    """Put a first line that runs a check in a copy, unless the check holds nothing but a comment."""
    source = re.sub(f"^{MAGIC}.*\n?", "", cell.source)
    kept = cell.metadata.get("course", {}).get("keeps", [])
    first = f"{MAGIC} keeps {', '.join(kept)}" if kept else MAGIC
    cell.source = f"{first}\n{source}" if (tree := parse(source)) and tree.body else source


def _defines(node: ast.stmt) -> set[str]:
    """The names of a function, a class or an import; none for other statements."""
    return bound(definitions(ast.unparse(node)))
