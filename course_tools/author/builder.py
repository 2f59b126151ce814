"""`course build`: execute a lesson's source and write its notebook; or check, without running, that the two agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_tools.author.guards import first_line, output_complaints, source_complaints
from course_tools.author.inputs import KEY, is_stale, record
from course_tools.author.minutes import time_complaints
from course_tools.author.source import read_source, tags_of
from course_tools.labs import Lab
from course_tools.lessons import Lesson


class BuildError(Exception):
    """A notebook cannot be built from its source; the message says which cells are at fault."""


def build(lesson: Lesson, *, fresh: bool = False, on_cell: Callable[[int], None] = lambda index: None) -> bool:
    """Execute a lesson's source and write its notebook. Returns whether the file changed.

    Args:
        lesson: the lesson to build.
        fresh: take new outputs of cells tagged `varies` too; by default they are kept, unless one of them is new.
        on_cell: called with a code cell's index in the notebook when it begins to run.

    Raises:
        BuildError: the source or its outputs contain something that `guards` forbids, or the header promises fewer
            minutes than the page takes; nothing is written.
        nbclient.exceptions.CellExecutionError: a cell raised; nothing is written.
    """
    from course_tools.author.stable import stabilise
    from course_tools.kernel import execute

    notebook, made_of = read_source(lesson), record(lesson.source, lesson.root)
    refuse(lesson.name, source_complaints(notebook))
    execute(notebook, lesson.notebook.parent, reproducible=True, on_cell=on_cell)
    if not fresh:
        keep_varying(notebook, stored_notebook(lesson.notebook))
    notebook = stabilise(notebook, lesson.name, lesson.root)
    notebook.metadata[KEY] = made_of
    refuse(lesson.name, output_complaints(notebook, lesson.root) + time_complaints(notebook.cells))
    return write_notebook(lesson.notebook, notebook)


def check(lesson: Lesson) -> list[str]:
    """Complaints about a stored notebook, without running it: other cells than the source, no run, unwanted outputs."""
    stored = stored_notebook(lesson.notebook)
    if stored is None:
        return ["was never built; run `course build`"]
    try:
        source = read_source(lesson)
    except ValueError as problem:
        return [str(problem)]
    complaints = source_complaints(source) + time_complaints(stored.cells) + output_complaints(stored, lesson.root)
    if cells_of(source) != cells_of(stored):
        complaints.insert(0, f"does not match its source ({first_difference(source, stored)}); run `course build`")
    if lesson.notebook.read_text("utf-8") != as_text(stored):
        complaints.append("was saved by something other than `course build`; run `course build`")
    return complaints + stale(stored, lesson)


def stale(stored: NotebookNode | None, item: Lesson | Lab) -> list[str]:
    """The complaint about a notebook that was run with other inputs than the checkout holds; none if it was not."""
    if stored is None or not is_stale(stored, item.source, item.root):
        return []
    return [f"was run before something that its outputs come from has changed; run `course build {item.number}`"]


def keep_varying(notebook: NotebookNode, stored: NotebookNode | None) -> None:
    """Give the cells tagged `varies` the outputs that they have in `stored`, if all of them are still the same cells.

    All or none: a table and a figure of the same seconds must be of the same run.
    """
    kept = {cell.id: cell.outputs for cell in stored.cells if "varies" in tags_of(cell)} if stored else {}
    own = [cell for cell in notebook.cells if "varies" in tags_of(cell)]
    for cell in own if all(cell.id in kept for cell in own) else ():
        cell.outputs = kept[cell.id]
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count


def other_outputs(before: NotebookNode | None, after: NotebookNode | None) -> str:
    """The first cell whose output differs although no cell does; empty if there is none."""
    if not before or not after or cells_of(before) != cells_of(after):
        return ""
    cells = zip(before.cells, after.cells, strict=True)
    return next((first_line(new) for old, new in cells if old.get("outputs") != new.get("outputs")), "")


def as_text(notebook: NotebookNode) -> str:
    """The text of a notebook as every file on disk has it."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def write_notebook(path: Path, notebook: NotebookNode) -> bool:
    """Write a valid notebook where it differs from the one on disk; returns whether it did."""
    nbformat.validate(notebook)
    text = as_text(notebook)
    if path.exists() and path.read_text("utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", newline="\n")
    return True


def stored_notebook(path: Path) -> NotebookNode | None:
    """The notebook on disk, if there is one."""
    return nbformat.read(path, as_version=4) if path.exists() else None


def refuse(name: str, complaints: list[str]) -> None:
    """Raise all complaints as one error.

    Raises:
        BuildError: there are complaints.
    """
    if complaints:
        raise BuildError(f"{name} cannot be built:\n" + "\n".join(f"  {text}" for text in complaints))


def cells_of(notebook: NotebookNode) -> list[tuple[str, str, str, str]]:
    """The parts of all cells that a notebook and its source must have in common."""
    return [(c.id, c.cell_type, c.source, json.dumps(c.metadata, sort_keys=True)) for c in notebook.cells]


def first_difference(source: NotebookNode, stored: NotebookNode) -> str:
    """The place where a source and a stored notebook part, as `first at 'a line'`."""
    pairs = zip(cells_of(source), cells_of(stored), strict=False)
    number = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(source.cells), len(stored.cells)))
    cells = source.cells if number < len(source.cells) else stored.cells
    line = next(iter(cells[number].source.strip().splitlines()), "") if number < len(cells) else ""
    return f"first at {line[:60]!r}"
