"""Every lab: stubs fail with words that help, the solution has all points, known-wrong answers lose exactly theirs.

By default those run that lose, together, every check there is; the others wait for `start.py test all`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from course_tools.author.lab_builder import check_lab
from course_tools.labs import Lab, find_labs

from .arguments import FIXED, Varied
from .faults import Fault, cover, read_faults
from .habits import LOOKED_AT
from .running import all_checks, complaints, public_checks, run_lab, solution_of

ROOT = Path(__file__).parents[2]
READS = ("solutions/**/*", "labs/**/*", "tests/mutants/lab*/*")
LABS = find_labs(ROOT)
FAULTS = {lab: read_faults(ROOT / "tests" / "mutants" / lab.number) for lab in LABS}

pytestmark = pytest.mark.timeout(600)
each_lab = pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
as_students = pytest.mark.usefixtures("unchecked_shapes")
"""Without the tests' checks of shapes, which would take a third of the time."""


def known_wrong() -> Iterator[Any]:
    """Every known-wrong answer with its lab, as in `lab07-q2-mean_of_means`; nightly, unless the cover needs it."""
    for lab, faults in FAULTS.items():
        needed = cover(faults)
        for fault in faults:
            marks = () if fault in needed else pytest.mark.nightly
            yield pytest.param(lab, fault, id=f"{lab.number}-{fault.file.stem}-{fault.name}", marks=marks)


ANSWERS = list(known_wrong())


@each_lab
def test_each_check_is_lost_by_a_known_wrong_answer_of_the_default(lab: Lab) -> None:
    kept: list[Fault] = [param.values[1] for param in ANSWERS if param.values[0] == lab and not param.marks]
    assert set(all_checks(lab)) - {check for fault in kept for check in fault.loses} == set()


@each_lab
def test_there_are_enough_known_wrong_answers(lab: Lab) -> None:
    assert len(FAULTS[lab]) >= 5
    for fault in FAULTS[lab]:
        assert fault.answers(solution_of(lab))


@each_lab
def test_stored_notebooks_are_those_of_the_source(lab: Lab) -> None:
    assert check_lab(lab) == []


@each_lab
@as_students
def test_stubs_get_no_point_and_are_told_so(lab: Lab) -> None:
    failures = run_lab(lab, stubs=True)
    assert set(failures) == set(all_checks(lab))
    for check in public_checks(lab):
        assert failures[check].startswith("CheckFailed") and "not written yet" in failures[check], failures[check]


@each_lab
@as_students
def test_the_solution_gets_every_point_and_hidden_checks_vary_all_arguments(lab: Lab, tmp_path: Path) -> None:
    varied = Varied(tmp_path / "notes")
    assert run_lab(lab, varied=varied) == {}
    explained_exactly(varied.constant(), FIXED.get(lab.number, {}), "arguments: vary them in a hidden check, or FIXED")
    if (without := LOOKED_AT.get(lab.number)) is not None:
        explained_exactly(varied.met.missing(), without, "habits: as_in_training asks for them in a line, or LOOKED_AT")


def explained_exactly(found: Any, reasons: dict[str, str], what: str) -> None:
    """Each finding fits a pattern that has a reason, and each pattern fits a finding."""
    unexplained = [name for name in found if not any(fnmatchcase(name, pattern) for pattern in reasons)]
    assert unexplained == [], f"{what}, which says why none is needed"
    stale = [pattern for pattern in reasons if not any(fnmatchcase(name, pattern) for name in found)]
    assert stale == [], f"{what}: checks have them now"


@pytest.mark.parametrize(("lab", "fault"), ANSWERS)
@as_students
@pytest.mark.usefixtures("impatient", "terminal")
def test_a_known_wrong_answer_loses_its_points(lab: Lab, fault: Fault) -> None:
    assert complaints(lab, fault) == []
