"""Mechanical edits of answers: what is edited, what is left alone, and a sample of each lab's, which is caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_tools.labs import Lab, find_labs
from tests.author.conftest import make_lab
from tests.mutants.generated import judging
from tests.mutants.generated.edits import Edit, edits
from tests.mutants.generated.judging import KINDS, edits_of, in_the_check, listed, lost_by, sample

from .test_running import SOURCE

ROOT = Path(__file__).parents[2]
READS = ("solutions/src/*.py", "tests/mutants/generated/*.toml")
LABS = find_labs(ROOT)
ANSWER = '''\
@decorated(1)
def late(values: list[int], least=1, *, wide=False):
    """At 1 or more."""
    given = 1
    ### BEGIN SOLUTION
    if len(values) < 2 and not wide:
        raise ValueError(f"{len(values) + 1} given: 2 are needed")
    total: int = min(values) + least  # not 1
    for a, b in zip(values, values[1:], strict=True):
        total -= a * b
    return total
    ### END SOLUTION
'''


@pytest.fixture(scope="module")
def names() -> list[str]:
    return [edit.name for edit in edits("q1", ANSWER)]


EXPECTED = [
    "def late(values: list[int], least=1, *, wide=False): → def late(values: list[int], least=2, *, wide=False):",
    "(nothing) → least = 1",
    "(nothing) → wide = False",
    "if len(values) < 2 and not wide: → if len(values) <= 2 and not wide:",
    "if len(values) < 2 and not wide: → if len(values) < 2 or not wide:",
    "if len(values) < 2 and not wide: → if len(values) < 2 and wide:",
    "if len(values) < 2 and not wide: → if False:",
    'raise ValueError(f"{len(values) + 1} given: 2 are needed") → pass',
    "total: int = min(values) + least → total: int = max(values) + least",
    "total: int = min(values) + least → total: int = min(values) - least",
    "for a, b in zip(values, values[1:], strict=True): → for a, b in zip(values, values[2:], strict=True):",
    "total -= a * b → pass",
    "total -= a * b → total -= a / b",
    "total -= a * b → total = a * b",
]


@pytest.mark.parametrize("name", EXPECTED)
def test_an_edit_that_a_student_might_make(names: list[str], name: str) -> None:
    assert name in names


def test_words_annotations_given_lines_and_strict_are_left_alone(names: list[str]) -> None:
    assert len(names) == len(set(names))
    for word in ("decorated(", "strict=False", "values, values[1:], )", "+ 2 given", "1 given: 3", "given ="):
        assert not any(word in name.split(" → ")[1] for name in names), word
    assert not any("return total" in name for name in names)


def test_an_edit_changes_the_lines_that_it_names_and_no_others() -> None:
    for edit in edits("q1", ANSWER):
        old, new = edit.name.split("  #")[0].split(" → ")
        gone, come = (ANSWER.count(old) - edit.source.count(old), edit.source.count(new) - ANSWER.count(new))
        assert old == "(nothing)" or gone == 1, edit.name
        assert come >= 1 or new == "(nothing)", edit.name


def test_a_larger_sample_holds_the_smaller_one_and_keeps_the_order() -> None:
    found = edits("q1", ANSWER)
    few, many = sample(found, 5, 1), sample(found, 12, 1)
    assert set(few) <= set(many) and many == [edit for edit in found if edit in many]
    assert sample(found, 5, 2) != few


@pytest.fixture
def small(tmp_path: Path) -> Lab:
    return make_lab(tmp_path, SOURCE)


@pytest.mark.usefixtures("terminal")  # the clock interrupts as Ctrl-C does
def test_an_edit_is_caught_by_a_check_by_its_own_cell_or_by_the_clock(
    small: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "LIMIT_S", 0.3)
    found = {edit.name: lost_by(small, edit) for edit in edits_of(small)}
    assert found["return number + number → return number - number"].startswith("q1-values: CheckFailed")
    assert all(found.values())
    assert lost_by(small, Edit("q1", "twice", "def double(number):\n    return 2 * number")) == ""
    raises = Edit("q1", "raises", "def double(number):\n    return 2 * number\n\n\n1 / 0")
    assert lost_by(small, raises) == "(its cell) ZeroDivisionError: division by zero"
    endless = Edit("q1", "no end", "def double(number):\n    while True:\n        time.sleep(0.01)")
    assert lost_by(small, endless).startswith("q1-values: TimeoutError")
    through = Edit("q1", "wrong at 4 and 8", "def double(number):\n    return 0 if number == 4 else 2 * number")
    assert lost_by(small, through).startswith("q2-hidden"), "another question may tell it"


@pytest.mark.parametrize("lab", [lab for lab in LABS if listed(lab)], ids=lambda lab: lab.number)
def test_listed_survivors_are_still_made_and_say_why(lab: Lab) -> None:
    for (cell, name), verdict in listed(lab).items():
        kind, _, why = verdict.partition(": ")
        assert kind in KINDS and len(why) > 5, (name, verdict)
        if kind != "closed":  # the answer may have changed since
            assert name in {edit.name for edit in edits_of(lab, cell)}, f"{cell} has no edit {name!r} any more"


@pytest.mark.parametrize(
    "lab", [pytest.param(lab, id=lab.number, marks=pytest.mark.nightly if lab in LABS[2:] else ()) for lab in LABS]
)
@pytest.mark.usefixtures("unchecked_shapes", "impatient", "terminal")
def test_a_sample_of_edits_loses_points(lab: Lab) -> None:
    for edit in in_the_check(lab):
        if not lost_by(lab, edit):
            known = listed(lab).get((edit.grade_id, edit.name))
            assert known, (
                f"{edit.grade_id}: {edit.name} keeps all points: close it, or say in {lab.number}.toml why not"
            )
