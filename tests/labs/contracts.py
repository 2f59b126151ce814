"""Each sentence of a lab's contracts, and the known-wrong answer that breaks it, from a table in the lab's source.

The table stands in the last hidden check of a question, where students never see it:

    #= Each value is a list of shapes | one_shape_for_each_layer
    #= A tensor that two parts share | head_listed_twice tied_nowhere
    #= The byte is called E8M0 | - a name, and nothing to do

The beginning of a sentence, and the known-wrong answers of `tests/mutants` that break it; which checks each loses is
said there. `-` and a reason, where an answer cannot break it; `? what would`, where nobody has shown a check that tells
it. Sentences are those between "The contract" (or "Your") and "What is graded", entries of lists and rows of tables
among them, and those of the docstrings above the solution's marks; not those that are a signature and nothing else.
"""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from nbformat import NotebookNode

from course_tools.author.lab_source import grade_id_of, is_answer, is_check

_CONTRACT = re.compile(
    r"\*\*(?:The|Your) contract[^*]*\*\*(.*?)(?=\*\*(?:What is g|G)raded|\*\*(?:The|Your) contract|\*\*Before|\Z)", re.S
)
_SIGNATURE = re.compile(r"(?:`[^`]*`|and|,|:|\s)*[.:]?")
_ROW = re.compile(r"^#= (.+?) \| (.+)$", re.M)


class Promise(NamedTuple):
    """A row of the table: how its sentence begins, the known-wrong answers, or why there is none, or what would be."""

    begins: str
    faults: tuple[str, ...]
    why: str
    open: str = ""


def promises(key: NotebookNode) -> dict[str, list[Promise]]:
    """The rows of each question, as in `q1`."""
    found: dict[str, list[Promise]] = {}
    for cell in key.cells:
        for begins, rest in _ROW.findall(cell.source) if is_check(cell) else ():
            kind, _, words = rest.partition(" ")
            named = () if kind in "-?" else tuple(rest.split())
            row = Promise(begins, named, words * (kind == "-"), words * (kind == "?"))
            found.setdefault(grade_id_of(cell).split("-")[0], []).append(row)
    return found


def sentences(key: NotebookNode) -> dict[str, list[str]]:
    """The sentences of each question's contract, as plain text on one line."""
    found: dict[str, list[str]] = {}
    waiting: list[str] = []
    for cell in key.cells:
        if cell.cell_type == "markdown":
            if cell.source.startswith("## "):
                waiting = []
            waiting += [each for text in _CONTRACT.findall(cell.source) for each in _split(text)]
        elif is_answer(cell) or is_check(cell):
            own = found.setdefault(grade_id_of(cell).split("-")[0], [])
            own += waiting
            waiting = []
            if is_answer(cell):
                own += [each for text in _docstrings(cell.source) for each in _split(text)]
    return {question: list(dict.fromkeys(own)) for question, own in found.items()}


def _split(text: str) -> list[str]:
    """Sentences; a row of a table and an entry of a list begin one."""
    text = re.sub(r"(?m)^\|.*\n\|[-:| ]+\|$\n?", "", text)  # the head of a table
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )", text)
    plain = (re.sub(r"\s+", " ", re.sub(r"^\s*(?:[-*|]|\d+\.) *", "", block)).strip(" |") for block in blocks)
    return [
        each
        for block in plain
        for each in re.split(r"(?<=[.?!;])(?:\)|\*\*)? (?=[A-Z`(*$\"])", block)
        if not _SIGNATURE.fullmatch(each)
    ]


def _docstrings(source: str) -> list[str]:
    """What is said above the marks: inside a solution, nothing is a promise."""
    hidden = re.sub(r"(?s)### BEGIN SOLUTION.*?### END SOLUTION", "...", source)
    nodes = [node for node in ast.walk(ast.parse(hidden)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [text for node in nodes if (text := ast.get_docstring(node))]
