"""From any file that a student handed in to the notebook that is graded: the lab's own cells, the student's answers.

Checks, given cells and their order come from the lab, so editing, deleting or moving them changes nothing. Answers are
found by the grade_id in a cell's metadata or by the cell's id, and where those did not survive, by the names of the
functions and classes that the answer has to define.

A student may also write a function in a cell of their own and call it from an answer; on their screen that works, so it
must work here. Such a cell runs directly before the first answer that reads a name it binds. Other cells that students
add (experiments, prints) do not run.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import nbformat
from nbformat import NotebookNode

from course_tools.author.code import bound, defined, read
from course_tools.author.lab_source import grade_id_of, is_answer, is_check, student_version

NOT_ANSWERED = ": not answered"
"""The end of the note about a question of which the cell is there as it was handed out."""

_MOST_CELLS = 2000
_LONGEST_CELL = 200_000


class Unreadable(ValueError):
    """The submission is not a notebook; the text names the kind of file that it is."""


class WrongLab(ValueError):
    """The submission is a notebook, but not of this lab."""


@dataclass(frozen=True)
class StudentCell:
    """A code or markdown cell as it was handed in; all that is certain of it is that it is text."""

    kind: str
    source: str
    cell_id: str = ""
    grade_id: str = ""

    @property
    def text(self) -> str:
        """The source without blank ends, for comparisons."""
        return self.source.strip()


@dataclass
class Rebuilt:
    """The notebook to run, and notes of all repairs.

    Cells of the notebook carry `metadata.course`: for the lab's own cells `binds`, the names they bind that no answer
    binds; for a student's cell `extra`, the question that it belongs to; for an answer `right`, the solution's text,
    and whether it is `answered`.
    """

    notebook: NotebookNode
    notes: list[str] = field(default_factory=list)


def read_submission(data: bytes) -> tuple[list[StudentCell], str, str]:
    """The cells of a notebook of any nbformat, and the lab and the term that its metadata names (or "").

    Raises:
        Unreadable: the data are no notebook.
    """
    start = data[:1000].lstrip().lower()
    if not start:
        raise Unreadable("the file is empty")
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise Unreadable("the file is a web page, not a notebook: download the .ipynb file itself")
    try:
        document = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        what = "its end seems to be missing" if start.startswith(b"{") else "it is another kind of file"
        what = "it holds a git conflict (<<<<<<<)" if b"\n<<<<<<< " in data else what
        raise Unreadable(f"the file cannot be read as a notebook: {what}") from None
    if not isinstance(document, dict) or not isinstance(document.get("cells", document.get("worksheets")), list):
        raise Unreadable("the file is JSON, but not a notebook")
    raw = document.get("cells")
    if not isinstance(raw, list):  # nbformat 3 and older keep cells in worksheets
        raw = [cell for sheet in document["worksheets"] for cell in _get(sheet, "cells", list)]
    cells = [cell for cell in map(_cell, raw[:_MOST_CELLS]) if cell]
    course = _get(_get(document, "metadata", dict), "course", dict)
    return cells, _get(course, "lab", str), _get(course, "term", str)


def rebuild(key: NotebookNode, data: bytes) -> Rebuilt:
    """The notebook that is graded.

    Args:
        key: the whole lab, with solutions and hidden tests.
        data: the file that was handed in.

    Raises:
        Unreadable: the file is no notebook.
        WrongLab: the file is a notebook of another lab, or of none.
    """
    cells, lab, term = read_submission(data)
    course = key.metadata.get("course", {})
    expected, wanted = course.get("lab", ""), course.get("term", "")
    if lab and expected and lab != expected:
        raise WrongLab(f"this is a notebook of {lab[:100]}, not of {expected}")
    released = student_version(key)
    answers = _Answers(released, cells)
    if not answers.any_found:
        raise WrongLab(f"none of the questions of {expected or 'this lab'} are in this notebook")
    result = Rebuilt(copy.deepcopy(key))
    if lab and term != wanted:
        numbers = [f"the numbers of {name[:100]!r}" if name else "the published numbers" for name in (term, wanted)]
        result.notes.append(f"this notebook has {numbers[0]}; it was judged with {numbers[1]}")
    result.notebook.cells = list(_with_answers(key, released, answers, result.notes))
    return result


def _with_answers(
    key: NotebookNode, released: NotebookNode, answers: _Answers, notes: list[str]
) -> Iterator[NotebookNode]:
    """The cells of the key, answers put in, the students' own cells before the answers that need them."""
    open_names = set().union(*(bound(cell.source) for cell in key.cells if is_answer(cell)), set())
    given = set().union(*(_lasting(cell) for cell in key.cells if not is_answer(cell)), set())
    used: set[StudentCell] = set()
    for cell, stub in zip(key.cells, released.cells, strict=True):
        cell = copy.deepcopy(cell)
        course: dict = {}
        if is_answer(cell):
            name = grade_id_of(cell)
            course["right"], cell.source = cell.source, answers.source(stub, notes)
            course["answered"] = cell.source != stub.source
            for extra in _needed(read(cell.source) - given, answers.spare, used, given):
                notes.append(f"{name}: a cell of your own that it needs runs before it ({_title(extra)})")
                yield nbformat.v4.new_code_cell(extra.source, metadata={"course": {"extra": name.split("-")[0]}})
        elif cell.cell_type == "code":
            course["binds"] = sorted(bound(cell.source) - open_names)
            course["keeps"] = cell.metadata.get("course", {}).get("keeps", [])
        cell.metadata["course"] = course
        yield cell


def _lasting(cell: NotebookNode) -> set[str]:
    """Names that a cell of the lab leaves behind; a check's variables are gone, but for those that it `keeps`."""
    return set(cell.metadata.get("course", {}).get("keeps", [])) if is_check(cell) else bound(cell.source)


def _needed(wanted: set[str], spare: list[StudentCell], used: set[StudentCell], given: set[str]) -> list[StudentCell]:
    """The student's own cells that bind a wanted name, or a name that such a cell reads, in the notebook's order."""
    chosen: set[int] = set()
    waiting = set(wanted)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for number, cell in enumerate(spare):
            if cell not in used and number not in chosen and {name, "*"} & bound(cell.source):
                chosen.add(number)
                waiting |= read(cell.source) - given - seen
    cells = [spare[number] for number in sorted(chosen)]
    used.update(cells)
    return cells


class _Answers:
    """Finds the cells of a submission that answer the lab's questions; the rest of its code is `spare`."""

    def __init__(self, released: NotebookNode, cells: list[StudentCell]) -> None:
        self._stubs = {cell.source.strip() for cell in released.cells if is_answer(cell)}
        own = [cell for cell in released.cells if not is_answer(cell)]
        fixed_text = {cell.source.strip() for cell in own}
        wanted = {name for cell in released.cells if is_answer(cell) for name in defined(cell.source)}
        fixed_names = {name for cell in own for name in (cell.get("id"), grade_id_of(cell)) if name}
        claimed = [cell for cell in cells if cell.text]
        self._free = [
            cell
            for cell in claimed
            if cell.text not in fixed_text
            and cell.grade_id not in fixed_names
            and not (cell.cell_id in fixed_names and not cell.grade_id and not wanted & defined(cell.source))
        ]
        self._found = {cell.id: self._matching(cell) for cell in released.cells if is_answer(cell)}
        self._named = {cell.id for cell in released.cells if self._found.get(cell.id) and self._by_name(cell)}
        taken = {cell for found in self._found.values() for cell in found}
        code = [cell for cell in self._free if cell.kind == "code"]
        self.spare = [cell for cell in code if cell not in taken and cell.text not in self._stubs]
        needs_names = [cell for cell in released.cells if is_answer(cell) and defined(cell.source)]
        self.any_found = bool(self._named) if needs_names else any(self._found.values())

    def _by_name(self, stub: NotebookNode) -> list[StudentCell]:
        wanted = defined(stub.source)
        return [cell for cell in self._free if cell.kind == "code" and wanted & defined(cell.source)]

    def _matching(self, stub: NotebookNode) -> list[StudentCell]:
        """Cells that carry the answer's id, and unmarked cells that define the names that the answer must define."""
        name = grade_id_of(stub)
        marked = {
            cell for cell in self._free if cell.grade_id == name or (not cell.grade_id and cell.cell_id == stub.id)
        }
        same_kind = {cell for cell in marked if cell.kind == stub.cell_type}
        by_name = {cell for cell in self._by_name(stub) if not cell.grade_id or cell.grade_id == name}
        return [cell for cell in self._free if cell in same_kind | by_name]

    def source(self, stub: NotebookNode, notes: list[str]) -> str:
        """The answer's text: parts in order; of two parts that define the same, the later one."""
        name, found = grade_id_of(stub), self._found[stub.id]
        edited = [cell for cell in dict.fromkeys(found) if cell.text not in self._stubs]
        if not edited:
            return self._unanswered(stub, notes)
        if not any(cell.grade_id == name for cell in edited):
            notes.append(f"{name}: the cell had lost its mark; found by the names that it defines")
        kept: list[StudentCell] = []
        for cell in edited:
            names = defined(cell.source)
            kept = [other for other in kept if not names & defined(other.source)]
            kept.append(cell)
        if len(kept) < len(edited):
            notes.append(f"{name}: {len(edited)} cells answer it; of those that define the same, the last one counts")
        elif len(kept) > 1:
            notes.append(f"{name}: its answer stood in {len(kept)} cells, which were put together")
        return "\n\n\n".join(cell.source for cell in kept)

    def _unanswered(self, stub: NotebookNode, notes: list[str]) -> str:
        """The stub; or nothing, where the cell of another question holds this answer, too."""
        name, wanted = grade_id_of(stub), defined(stub.source)
        code = [cell for cell in self._free if cell.kind == "code" and cell.text not in self._stubs]
        if any(wanted & defined(cell.source) for cell in code):
            notes.append(f"{name}: answered in the cell of another question")
            return ""
        notes.append(f"{name}{NOT_ANSWERED}" if self._found[stub.id] else f"{name}: no answer found")
        return stub.source


def _cell(raw: object) -> StudentCell | None:
    """A cell of any nbformat, or None for an object that is not one."""
    kind = _get(raw, "cell_type", str)
    source = raw.get("source", raw.get("input")) if isinstance(raw, dict) else None
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    if kind not in ("code", "markdown") or not isinstance(source, str) or len(source) > _LONGEST_CELL:
        return None
    source = source.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be sent to a kernel
    mark = _get(_get(raw, "metadata", dict), "nbgrader", dict)
    return StudentCell(kind, source, _get(raw, "id", str), _get(mark, "grade_id", str))


def _get(thing: object, name: str, kind: type) -> Any:
    """`thing[name]` if that exists and is of this kind, else an empty object of this kind."""
    value = thing.get(name) if isinstance(thing, dict) else None
    return value if isinstance(value, kind) else kind()


def _title(cell: StudentCell) -> str:
    return cell.text.splitlines()[0][:60]
