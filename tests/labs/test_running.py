"""What decides whether a known-wrong answer is caught: the checks that it meets, and what is said of it."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest

from course_tools.labs import Lab

from . import running
from .faults import Fault, parse
from .running import all_checks, complaints, run_lab

SOURCE = '''\
# %% [markdown]
# # Lab 90 · Two functions

# %%
import linecache
import time

from course_kit.checks import check

shared = [0]


# %%
def twice_of(number):
    """Uses an answer that stands below."""
    return double(number)


# %% [markdown]
# ## 1 · Double (60 points)


# %% answer="q1"
def double(number):
    ### BEGIN SOLUTION
    return number + number
    ### END SOLUTION


# %%
eight = double(4)

# %% check="q1-values" points=20
# q1-values
check.equal(check.call(double, 3), 6, "twice three", look="the sum")
result = double(1)

# %% check="q1-hidden" points=20
### BEGIN HIDDEN TESTS
# q1-hidden
check.equal(check.call(double, -1), -2, "twice less than nothing")
### END HIDDEN TESTS

# %%
result = 10

# %% check="q1-through" points=20
# q1-through
check.equal(twice_of(2).real + result, 14, "through a function that stands above the answer")

# %% [markdown]
# ## 2 · Half (40 points)


# %% answer="q2"
def half(number):
    ### BEGIN SOLUTION
    return number / 2
    ### END SOLUTION


# %%
print("a picture of", half(8))

# %% check="q2-values" points=20
# q2-values
result = check.call(half, 8)
check.equal(result, 4.0, "half of eight")

# %% check="q2-hidden" points=20
### BEGIN HIDDEN TESTS
# q2-hidden
check.equal(check.call(half, eight), 4.0, "half of what question 1 made")
### END HIDDEN TESTS
'''
EVERY = ["q1-values", "q1-hidden", "q1-through", "q2-values", "q2-hidden"]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path, "lab90_two")
    lab.source.parent.mkdir(parents=True)
    lab.source.write_text(SOURCE, "utf-8")
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nRepository = "https://github.com/_OWNER_/x"\n')
    return lab


def fault(lab: Lab, loses: str, edits: str, question: str = "q1") -> Fault:
    text = f"# Wrong.\nwrong: {loses}\n{edits}"
    (only,) = parse(lab.root / "tests" / "mutants" / "lab90" / f"{question}.diff", text)
    return only


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The text of each cell that runs from here on."""
    texts: list[str] = []

    def record(source: str, namespace: dict[str, Any]) -> None:
        texts.append(source)
        execute(source, namespace)

    execute = running._execute
    running._prepared.cache_clear()
    monkeypatch.setattr(running, "_execute", record)
    return texts


def met(executed: list[str]) -> list[str]:
    """The checks among these cells."""
    return [check for text in executed for check in EVERY if f"# {check}" in text]


def test_the_solution_loses_nothing_and_stubs_lose_all(lab: Lab) -> None:
    assert all_checks(lab) == EVERY
    assert run_lab(lab) == {}
    assert list(run_lab(lab, stubs=True)) == EVERY


def test_an_answer_meets_the_checks_that_a_name_leads_to(lab: Lab, executed: list[str]) -> None:
    run_lab(lab, {"q2": "def half(number):\n    return number / 2"})
    assert met(executed) == ["q2-values", "q2-hidden"]
    executed.clear()
    run_lab(lab, {"q1": "def double(number):\n    return 2 * number"})
    # q1-through calls a function that stands above the answer, q2-hidden reads what a cell made with it; q2-values
    # reads `result` as well, but binds it first
    assert met(executed) == ["q1-values", "q1-hidden", "q1-through", "q2-hidden"]


def test_what_a_fault_breaks_in_other_questions_is_found(lab: Lab) -> None:
    assert set(run_lab(lab, {"q1": "def double(number):\n    return 3 * number"})) == set(EVERY) - {"q2-values"}


def test_it_may_stop_at_the_first_check_that_fails(lab: Lab, executed: list[str]) -> None:
    assert list(run_lab(lab, {"q1": "def double(number):\n    return 3 * number"}, first=True)) == ["q1-values"]
    assert met(executed) == ["q1-values"]


def test_cells_that_no_check_needs_do_not_run(lab: Lab, executed: list[str]) -> None:
    run_lab(lab, {"q2": "def half(number):\n    return number"})
    assert not any("a picture" in text for text in executed)
    assert any("eight =" in text for text in executed), "q2-hidden needs it"


def test_cells_above_run_once_and_leave_every_answer_the_same(lab: Lab, executed: list[str]) -> None:
    spoils = "def double(number):\n    shared.append(number)\n    return number + number + shared[0]"
    first, second = (run_lab(lab, {"q1": spoils}) for _ in range(2))
    assert first == second == {}, "the list is as the cells left it, and functions find their answer"
    assert sum("shared = [0]" in text for text in executed) == 1


def test_the_text_of_a_cell_is_known_as_long_as_a_run_needs_it(lab: Lab) -> None:
    text = "''.join(linecache.getlines(twice_of.__code__.co_filename))"
    asks = f"def half(number):\n    assert 'stands below' in {text}\n    return number / 2"
    known = []
    for _ in range(3):
        assert run_lab(lab, {"q2": asks}) == {}, "of a cell above, which has run for another answer, too"
        known.append(sum(name.startswith(("<cell ", "<check ")) for name in linecache.cache))
    assert known == known[:1] * 3, "groups of ranks are sent all of them"


def test_a_cell_that_binds_a_name_anew_stays_below_the_one_that_bound_it(lab: Lab, executed: list[str]) -> None:
    assert run_lab(lab, {"q1": "def double(number):\n    return 2 * number"}) == {}
    assert [text for text in executed if "result = " in text][:2][1] == "result = 10"


def test_an_answer_of_a_cell_that_is_not_there_is_refused(lab: Lab) -> None:
    with pytest.raises(ValueError, match="lab90_two has no answer cell q9"):
        run_lab(lab, {"q9": "pass"})


def test_an_answer_that_is_no_python_is_not_a_wrong_answer(lab: Lab) -> None:
    with pytest.raises(SyntaxError):
        run_lab(lab, {"q1": "def double(number) return 0"})


def test_an_answer_that_does_not_end_costs_its_limit(lab: Lab) -> None:
    endless = "def double(number):\n    while True:\n        time.sleep(0.01)"
    failures = run_lab(lab, {"q1": endless}, limit_s=0.3)
    assert failures["q1-values"] == "TimeoutError: no end after 0.3 s"
    assert set(failures) == set(EVERY) - {"q2-values"}


def test_ctrl_c_is_not_taken_for_a_limit(lab: Lab) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_lab(lab, {"q1": "def double(number):\n    raise KeyboardInterrupt"})


def test_a_fault_that_loses_what_it_names_is_as_it_should_be(lab: Lab) -> None:
    wrong = fault(lab, "q1-values q1-hidden q1-through", "- return number + number\n+ return 3 * number")
    assert complaints(lab, wrong) == []


def test_a_race_may_lose_more_in_one_run_than_in_another(lab: Lab) -> None:
    edits = "- return number + number\n+ return 3 * number"
    assert complaints(lab, fault(lab, "q1-values q1-hidden? q1-through", edits)) == []
    assert complaints(lab, fault(lab, "q1-values q1-hidden q1-through", edits)) == []
    never = "- return number + number\n+ return 7 if number == 7 else number + number"
    (missing,) = complaints(lab, fault(lab, "q1-values q1-hidden?", never))
    assert "does not lose q1-values" in missing


COMPLAINTS = {
    "loses nothing": ("q1-values", "- number + number\n+ 2 * number", ["does not lose q1-values"]),
    "loses less": (
        "q1-values q1-hidden q1-through",
        "- return number + number\n+ return 2 * abs(number)",
        ["does not lose q1-values", "does not lose q1-through"],
    ),
    "loses more": (
        "q1-values q1-through",
        "- return number + number\n+ return 7",
        ["loses q1-hidden, which it does not name: CheckFailed"],
    ),
    "names what is not there": ("q1-value", "- number + number\n+ 7", ["q1 of lab90_two has no check q1-value"]),
    "names another question's": ("q1-values q2-hidden", "- number + number\n+ 7", ["has no check q2-hidden"]),
    "breaks a check down": (
        "q1-values q1-hidden q1-through",
        "- return number + number\n+ return None if number == 2 else 7",
        ["q1-through must say what is wrong, not crash: AttributeError"],
    ),
}


@pytest.mark.parametrize("what", COMPLAINTS)
def test_a_fault_that_does_not_keep_its_word_is_reported(lab: Lab, what: str) -> None:
    loses, edits, expected = COMPLAINTS[what]
    found = complaints(lab, fault(lab, loses, edits))
    assert len(found) == len(expected)
    for complaint, words in zip(found, expected):
        assert complaint.startswith("lab90/q1.diff, wrong: ") and words in complaint


def test_an_anchor_that_is_gone_names_lab_fault_and_anchor(lab: Lab) -> None:
    with pytest.raises(ValueError, match="lab90/q1.diff, wrong: the anchor 'number \\* 2' is gone"):
        complaints(lab, fault(lab, "q1-values", "- number * 2\n+ number"))
