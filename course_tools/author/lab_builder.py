"""`course build` for labs: one source becomes the students' notebook and the solved, executed one."""

from __future__ import annotations

import copy
from collections.abc import Callable

from nbformat import NotebookNode

from course_tools.author.builder import (
    as_text,
    cells_of,
    first_difference,
    keep_varying,
    refuse,
    stale,
    stored_notebook,
    write_notebook,
)
from course_tools.author.check_cells import announce
from course_tools.author.guards import output_complaints, source_complaints
from course_tools.author.inputs import KEY, record
from course_tools.author.lab_source import (
    is_check,
    lab_complaints,
    read_lab,
    solution_version,
    student_version,
)
from course_tools.labs import Lab


def build_lab(lab: Lab, *, fresh: bool = False, on_cell: Callable[[int], None] = lambda index: None) -> bool:
    """Write both notebooks of a lab. Returns whether one of them changed.

    The solution runs against every check, the hidden ones too, before anything is written.

    Args:
        lab: the lab to build.
        fresh: take new outputs of cells tagged `varies` too; by default those of an unchanged cell are kept.
        on_cell: called with a code cell's index in the notebook when it begins to run.

    Raises:
        BuildError: the source or its outputs contain something that the guards forbid; nothing is written.
        nbclient.exceptions.CellExecutionError: a cell of the solution raised; nothing is written.
    """
    from course_tools.author.stable import stabilise
    from course_tools.kernel import execute

    key, made_of = read_lab(lab), record(lab.source, lab.root)
    refuse(lab.name, _source_complaints(key))
    solved = copy.deepcopy(key)
    for cell in filter(is_check, solved.cells):
        announce(cell)
    lab.solution.parent.mkdir(parents=True, exist_ok=True)
    execute(solved, lab.solution.parent, reproducible=True, on_cell=on_cell)
    if not fresh:
        keep_varying(solved, stored_notebook(lab.solution))
    solved = solution_version(stabilise(solved, lab.name, lab.root))
    solved.metadata[KEY] = made_of
    refuse(lab.name, output_complaints(solved, lab.root))
    return any([write_notebook(lab.solution, solved), write_notebook(lab.notebook, student_version(key))])


def check_lab(lab: Lab) -> list[str]:
    """Complaints about a lab's stored notebooks, without running them."""
    try:
        key = read_lab(lab)
        complaints = _source_complaints(key)
    except ValueError as problem:
        return [str(problem)]
    for path, expected in ((lab.notebook, student_version(key)), (lab.solution, solution_version(key))):
        stored = stored_notebook(path)
        if stored is None:
            complaints.append(f"{path.relative_to(lab.root)} was never built; run `course build`")
            continue
        if cells_of(expected) != cells_of(stored):
            where = first_difference(expected, stored)
            complaints.append(f"{path.relative_to(lab.root)} does not match its source ({where}); run `course build`")
        elif path == lab.notebook and as_text(expected) != path.read_text("utf-8"):
            complaints.append(f"{path.relative_to(lab.root)} was run or edited; run `course build`")
        if path == lab.solution:
            complaints += output_complaints(stored, lab.root) + stale(stored, lab)
    return complaints


def _source_complaints(key: NotebookNode) -> list[str]:
    """Faults of the lab as a whole, and of the cells as students will see them."""
    return [*lab_complaints(key), *source_complaints(student_version(key))]
