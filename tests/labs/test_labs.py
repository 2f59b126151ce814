"""Every lab: stubs fail with words that help, the solution has all points, known-wrong answers lose exactly theirs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_tools.author.lab_builder import check_lab
from course_tools.author.lab_source import grade_id_of, is_check
from course_tools.author.source import tags_of
from course_tools.labs import Lab, find_labs

from .faults import Fault, read_faults
from .running import all_checks, complaints, public_checks, run_lab, solution_of

ROOT = Path(__file__).parents[2]
LABS = find_labs(ROOT)
FAULTS = [(lab, fault) for lab in LABS for fault in read_faults(ROOT / "tests" / "mutants" / lab.number)]

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_stored_notebooks_are_those_of_the_source(lab: Lab) -> None:
    assert check_lab(lab) == []


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_the_solution_gets_every_point(lab: Lab) -> None:
    """For one lab after a change; the whole test has this from the notebooks' stage, and from the next test."""
    assert run_lab(lab) == {}


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_no_check_of_the_solved_notebook_may_raise(lab: Lab) -> None:
    """The stage `notebooks` runs it again: there a check that takes a point away fails, unless its tags allow that."""
    cells = {grade_id_of(cell): cell for cell in nbformat.read(lab.solution, as_version=4).cells if is_check(cell)}
    assert set(cells) == set(all_checks(lab))
    for name, cell in cells.items():
        assert "raises-exception" not in tags_of(cell), name
        assert cell.execution_count and not any(output.output_type == "error" for output in cell.outputs), name


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_stubs_get_no_point_and_are_told_so(lab: Lab) -> None:
    failures = run_lab(lab, stubs=True)
    assert set(failures) == set(all_checks(lab))
    for check in public_checks(lab):
        assert failures[check].startswith("CheckFailed") and "not written yet" in failures[check], failures[check]


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_there_are_enough_known_wrong_answers(lab: Lab) -> None:
    faults = [fault for of, fault in FAULTS if of == lab]
    assert len(faults) >= 5
    for fault in faults:
        assert fault.answers(solution_of(lab))


@pytest.mark.parametrize(
    ("lab", "fault"), FAULTS, ids=lambda it: f"{it.file.stem}-{it.name}" if isinstance(it, Fault) else it.number
)
@pytest.mark.usefixtures("unchecked_shapes")  # students have no such checks, and they cost a third of the time
def test_a_known_wrong_answer_loses_its_points(lab: Lab, fault: Fault) -> None:
    assert complaints(lab, fault) == []
