"""From a lab's one source to its key, and from the key to the notebooks of students and instructors.

The *key* holds everything: text, solutions, public checks, hidden tests. Its cells carry nbgrader's metadata, so that
nbgrader can read each notebook that comes out of here; nbgrader's own preprocessors cut the solutions and the hidden
tests out.

INSTRUCTORS.md shows how to write a lab.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import nbformat
from nbformat import NotebookNode

from course_tools.author.check_cells import announce, kept_names, lost_names, topic_complaints
from course_tools.author.code import bound, definitions, read
from course_tools.author.marks import BEGIN_HIDDEN, check_marks
from course_tools.author.source import NOTEBOOK_METADATA, add_colab, read_cells, repository_url
from course_tools.author.terms import with_numbers
from course_tools.labs import Lab

STUB = "# YOUR CODE HERE\nraise NotImplementedError"
TEXT_STUB = "*Your answer here.*"
_TELLING = 12  # characters; shorter lines (`else:`, `return x`) give nothing away
_MARK = re.compile(r"^\s*### (?:BEGIN|END) SOLUTION\s*$\n?", re.M)
_HEADING = re.compile(r"^##+ (.+?)\s*$", re.M)
_ROW = re.compile(r"^\|\s*(\d+)\b.*\|\s*(\d+(?:\.\d+)?)\s*\|\s*$", re.M)
_POINTS = re.compile(r"\s*\((\d+(?:\.\d+)?) points?\)$")


@dataclass(frozen=True)
class Check:
    """A cell that earns points when it runs through: `grade_id` as in `q1-values`, hidden from students or not."""

    grade_id: str
    question: str
    points: float
    hidden: bool


@dataclass(frozen=True)
class Question:
    """A question of a lab.

    Attributes:
        name: the question's name, as in `q1`.
        title: the heading above its first answer, without the points.
        promised: the points that the heading names, or None.
        answers: the grade_ids of the cells that students fill in.
        checks: the cells that earn the points.
    """

    name: str
    title: str
    promised: float | None
    answers: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def points(self) -> float:
        """The points that all checks of the question earn together."""
        return sum(check.points for check in self.checks)


def read_lab(lab: Lab) -> NotebookNode:
    """The key of a lab: solutions, public checks and hidden tests in one notebook without outputs.

    Short options of the source's cells become nbgrader's metadata: `answer="q1"` marks a cell that students fill in,
    `check="q1-values" points=10` a locked cell that earns points.

    Raises:
        ValueError: the source is missing or says something that cannot be, with the cell's first line.
    """
    if not lab.source.exists():
        raise ValueError(f"{lab.name} has no source here: {lab.source} is missing (students do not get it)")
    cells = with_numbers(read_cells(lab.source), lab)
    add_colab(cells, repository_url(lab.root), f"labs/{lab.name}/{lab.name}")
    seen: set[str] = set()
    for number, cell in enumerate(cells):
        try:
            cell.metadata = nbformat.from_dict(_metadata(cell))
        except ValueError as problem:
            raise ValueError(f"{lab.source.name}, cell {_first_line(cell)!r}: {problem}") from None
        grade_id = grade_id_of(cell)
        if grade_id in seen:
            raise ValueError(f"{lab.source.name}: two cells are called {grade_id}; each needs a name of its own")
        seen |= {grade_id} - {""}
        text = f"{lab.name}:{cell.cell_type}:{cell.source}:{number}"
        cell.id = f"{lab.number}-{grade_id}" if grade_id else hashlib.sha256(text.encode()).hexdigest()[:12]
    code = [cell for cell in cells if cell.cell_type == "code"]
    for number, cell in enumerate(code):
        if is_check(cell) and (kept := kept_names(cell, code[number + 1 :])):
            cell.metadata["course"] = nbformat.from_dict({"keeps": kept})
    course = {"lab": lab.name} | ({"term": lab.term} if lab.term else {})
    return nbformat.v4.new_notebook(cells=cells, metadata={**NOTEBOOK_METADATA, "course": course})


def grade_id_of(cell: NotebookNode) -> str:
    """nbgrader's name of a cell; empty for a cell that is neither an answer nor a check."""
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")


def is_answer(cell: NotebookNode) -> bool:
    """Whether students fill this cell in."""
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def is_check(cell: NotebookNode) -> bool:
    """Whether this cell earns points."""
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))


def is_hidden(cell: NotebookNode) -> bool:
    """Whether this cell's tests are cut out of the students' notebook."""
    return is_check(cell) and BEGIN_HIDDEN in cell.source


def questions(key: NotebookNode) -> list[Question]:
    """The questions of a lab, in order.

    Args:
        key: the whole lab; hidden checks of a students' notebook cannot be told from public ones.
    """
    found: dict[str, dict] = {}
    heading = ""
    for cell in key.cells:
        if cell.cell_type == "markdown" and (headings := _HEADING.findall(cell.source)):
            heading = headings[-1]
        if not (is_answer(cell) or is_check(cell)):
            continue
        grade_id = grade_id_of(cell)
        name = grade_id.split("-")[0]
        parts = found.setdefault(name, {"heading": heading, "answers": [], "checks": []})
        if is_check(cell):
            points = float(cell.metadata["nbgrader"]["points"])
            parts["checks"].append(Check(grade_id, name, points, is_hidden(cell)))
        else:
            parts["answers"].append(grade_id)
    return [_question(name, **parts) for name, parts in found.items()]


def student_version(key: NotebookNode) -> NotebookNode:
    """The students' notebook: stubs for answers, public checks locked, hidden tests cut out."""
    from nbconvert.exporters.exporter import ResourcesDict
    from nbgrader.preprocessors import ClearHiddenTests, ClearSolutions, LockCells

    clear = ClearSolutions(code_stub={"python": STUB}, text_stub=TEXT_STUB)
    notebook = copy.deepcopy(key)
    for step in (clear, ClearHiddenTests(), LockCells()):
        notebook, _ = step.preprocess(notebook, ResourcesDict())
    _tidy(notebook)
    return notebook


def solution_version(key: NotebookNode) -> NotebookNode:
    """The solved notebook: answers as they are, without marks; hidden tests and their outputs cut out."""
    from nbconvert.exporters.exporter import ResourcesDict
    from nbgrader.preprocessors import ClearHiddenTests

    hidden = [cell.id for cell in key.cells if is_hidden(cell)]
    notebook, _ = ClearHiddenTests().preprocess(copy.deepcopy(key), ResourcesDict())
    for cell in notebook.cells:
        cell.source = _MARK.sub("", cell.source)
        if cell.id in hidden:
            cell.outputs = []
    _tidy(notebook)
    return notebook


def lab_complaints(key: NotebookNode) -> Iterator[str]:
    """Faults of a lab as a whole: points that do not add up, missing checks, borrowed variables."""
    found = questions(key)
    if not found:
        yield 'it has no questions: no cell is marked answer="q1"'
    for question in found:
        if not question.answers:
            yield f"{question.name} has checks but no cell to answer in"
        for kind, hidden in (("public", False), ("hidden", True)):
            if not any(check.hidden == hidden for check in question.checks):
                yield f"{question.name} has no {kind} check; one tells the student, the other tells the instructor"
        if question.promised != question.points:
            promise = f"({question.points:g} points)"
            yield f"{question.name} is worth {question.points:g} points; end the heading above it in {promise!r}"
    yield from _header_complaints(key, found)
    total = sum(question.points for question in found)
    if total != 100:
        yield f"its points add up to {total:g}, not 100"
    yield from _borrowed_variables(key)


def _header_complaints(key: NotebookNode, found: list[Question]) -> Iterator[str]:
    """Rows of the table in the header, as `| 1 | Softmax | 60 |`, that promise other points than the checks give."""
    points = {question.name: question.points for question in found}
    for number, promised in _ROW.findall(key.cells[0].source):
        worth = points.get(f"q{number}")
        if worth != float(promised):
            what = "there is no such question" if worth is None else f"its checks are worth {worth:g}"
            yield f"the table in the header has {promised} points for question {number}; {what}"


def _borrowed_variables(key: NotebookNode) -> Iterator[str]:
    """Variables of a check that other cells read: they are gone when the check has run."""
    owners: dict[str, str] = {}
    given: set[str] = set()
    code = [cell for cell in key.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code):
        for name in sorted((read(cell.source) & owners.keys()) - given):
            where = grade_id_of(cell) or f"the cell {_first_line(cell)!r}"
            yield f"{name} is a variable of {owners[name]}, and {where} reads it; bind it in a plain cell"
        if is_check(cell):
            complaints = (*lost_names(cell, code[number + 1 :]), *topic_complaints(cell))
            yield from (f"{grade_id_of(cell)}: {text}" for text in complaints)
            owners |= dict.fromkeys(bound(cell.source) - bound(definitions(cell.source)), grade_id_of(cell))
        else:
            given |= bound(cell.source)


def secret_blocks(key: NotebookNode, kinds: Sequence[str] = ("SOLUTION", "HIDDEN TESTS")) -> list[list[str]]:
    """Solutions and hidden tests, each as those of its lines that tell something and stand nowhere else in the lab."""
    blocks: list[tuple[str, list[str]]] = []
    given = set[str]()
    for cell in key.cells:
        inside = False
        for line in (line.strip() for line in cell.source.splitlines()):
            if mark := re.fullmatch(r"### (BEGIN|END) (SOLUTION|HIDDEN TESTS)", line):
                inside = mark[1] == "BEGIN"
                blocks += [(mark[2], [])] if inside else []
            elif inside and len(line) > _TELLING:
                blocks[-1][1].append(line)
            else:
                given.add(line)
    return [[line for line in block if line not in given] for kind, block in blocks if kind in kinds]


def _metadata(cell: NotebookNode) -> dict:
    given = dict(cell.metadata)
    answer, check, points = given.pop("answer", None), given.pop("check", None), given.pop("points", None)
    tags = sorted(given.pop("tags", []))
    metadata: dict = {"tags": tags} if tags else {}
    if "incorrectly_encoded_metadata" in given:  # jupytext's word for it
        raise ValueError('its options cannot be read; write them as in answer="q1" or check="q1-values" points=10')
    if unknown := sorted(set(given) - {"lines_to_next_cell", "lines_to_end_of_cell_marker"}):
        raise ValueError(f"unknown option {', '.join(unknown)}; known are answer, check, points, tags")
    check_marks(cell.source, answer=bool(answer), check=bool(check), code=cell.cell_type == "code")
    if answer and check:
        raise ValueError("a cell is an answer or a check, not both")
    if check and not isinstance(points, int | float):
        raise ValueError(f"the check {check} needs points=…, a number")
    if points is not None and not check:
        raise ValueError("points=… belongs to a check")
    if name := answer or check:
        if not re.fullmatch(r"q\d+(-[a-z0-9]+)*", name):
            raise ValueError(f"{name!r} is not a name such as q1 or q1-values")
        metadata["nbgrader"] = {
            "grade": bool(check),
            "grade_id": name,
            "locked": bool(check),
            "schema_version": 3,
            "solution": bool(answer),
            "task": False,
        } | ({"points": points} if check else {})
    return metadata


def _tidy(notebook: NotebookNode) -> None:
    """Strip the blank ends of cells; leave a word where a cell held nothing but hidden tests."""
    for cell in notebook.cells:
        cell.source = cell.source.rstrip()
        if is_check(cell):
            announce(cell)
        if is_check(cell) and not cell.source:
            cell.source = f"# {cell.metadata['nbgrader']['points']:g} points for tests that run when the lab is graded."


def _question(name: str, heading: str, answers: list[str], checks: list[Check]) -> Question:
    match = _POINTS.search(heading)
    return Question(name, _POINTS.sub("", heading), float(match[1]) if match else None, tuple(answers), tuple(checks))


def _first_line(cell: NotebookNode) -> str:
    return cell.source.strip().splitlines()[0][:60]
