"""Every lab: stubs fail with words that help, the solution has all points, known-wrong answers lose exactly theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_tools.author.lab_builder import check_lab
from course_tools.labs import Lab, find_labs

from .running import all_checks, public_checks, read_mutant, run_lab

ROOT = Path(__file__).parents[2]
LABS = find_labs(ROOT)
MUTANTS = [(lab, path) for lab in LABS for path in sorted((ROOT / "tests" / "mutants" / lab.number).glob("*.py"))]

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_stored_notebooks_are_those_of_the_source(lab: Lab) -> None:
    assert check_lab(lab) == []


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_the_solution_gets_every_point(lab: Lab) -> None:
    assert run_lab(lab) == {}


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_stubs_get_no_point_and_are_told_so(lab: Lab) -> None:
    failures = run_lab(lab, stubs=True)
    assert set(failures) == all_checks(lab)
    for check in public_checks(lab):
        assert failures[check].startswith("CheckFailed") and "not written yet" in failures[check], failures[check]


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_there_are_enough_known_wrong_answers(lab: Lab) -> None:
    assert sum(of == lab for of, _ in MUTANTS) >= 5


@pytest.mark.parametrize(("lab", "path"), MUTANTS, ids=lambda it: it.stem if isinstance(it, Path) else it.number)
@pytest.mark.usefixtures("unchecked_shapes")  # students have no such checks, and they cost a third of the time
def test_a_known_wrong_answer_loses_its_points(lab: Lab, path: Path) -> None:
    mutant = read_mutant(path)
    failures = run_lab(lab, mutant.answers)
    assert set(failures) == mutant.loses, failures
    said = [failures[check] for check in mutant.loses & public_checks(lab)]
    assert all(text.startswith("CheckFailed") for text in said), "a check must say what is wrong, not crash"
    assert said or mutant.loses, "a wrong answer that loses nothing"
