"""Every lab: stubs fail with words that help, the solution has all points, known-wrong answers lose exactly theirs."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from course_tools.author.lab_builder import check_lab
from course_tools.labs import Lab, find_labs

from .arguments import FIXED, Varied
from .faults import Fault, read_faults
from .habits import LOOKED_AT
from .running import all_checks, complaints, public_checks, run_lab, solution_of

ROOT = Path(__file__).parents[2]
LABS = find_labs(ROOT)
FAULTS = [(lab, fault) for lab in LABS for fault in read_faults(ROOT / "tests" / "mutants" / lab.number)]

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_stored_notebooks_are_those_of_the_source(lab: Lab) -> None:
    assert check_lab(lab) == []


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_the_solution_gets_every_point_and_hidden_checks_vary_all_arguments(lab: Lab, tmp_path: Path) -> None:
    varied = Varied(tmp_path / "notes")
    assert run_lab(lab, varied=varied) == {}
    fixed, constant = FIXED.get(lab.number, {}), varied.constant()
    unexplained = {name: seen for name, seen in constant.items() if not any(fnmatchcase(name, it) for it in fixed)}
    assert unexplained == {}, "vary them in a hidden check; FIXED has what cannot vary"
    assert [it for it in fixed if not any(fnmatchcase(name, it) for name in constant)] == [], "they vary: out of FIXED"
    if (without := LOOKED_AT.get(lab.number)) is not None:
        missing = varied.met.missing()
        unexplained = [each for each in missing if not any(fnmatchcase(each, it) for it in without)]
        assert unexplained == [], "habits that no check has: as_in_training asks for them in a line"
        assert [it for it in without if not any(fnmatchcase(each, it) for each in missing)] == [], (
            "checks have them now"
        )


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
@pytest.mark.usefixtures("unchecked_shapes", "impatient")  # students have no shape checks: a third of the time
def test_a_known_wrong_answer_loses_its_points(lab: Lab, fault: Fault) -> None:
    assert complaints(lab, fault) == []
