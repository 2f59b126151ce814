"""What decides whether a known-wrong answer is caught: the checks that it meets, and what is said of it."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest

from course_tools.labs import Lab
from tests.author.conftest import make_lab

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
eight = scale = double(4)

# %%
scale = 4.0

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
check.equal(result, scale, "half of eight")

# %% check="q2-hidden" points=20
### BEGIN HIDDEN TESTS
# q2-hidden
check.equal(check.call(half, eight), 4.0, "half of what question 1 made")
### END HIDDEN TESTS
'''
EVERY = ["q1-values", "q1-hidden", "q1-through", "q2-values", "q2-hidden"]


TRIPLED = "def double(number):\n    return 3 * number"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path, SOURCE)


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The text of each cell that runs from here on."""
    texts: list[str] = []

    def record(source: str, *options: Any, **noted: bool) -> None:
        texts.append(source)
        execute(source, *options, **noted)

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
    assert not any("a picture" in text for text in executed), "no check needs it"
    assert any("eight =" in text for text in executed), "q2-hidden needs it"
    executed.clear()
    assert run_lab(lab, {"q1": "def double(number):\n    return 2 * number"}) == {}
    # q1-through calls a function that stands above the answer, q2-hidden reads what a cell made with it; q2-values
    # reads `result` as well, but binds it first, and `scale`, which another cell has bound anew
    assert met(executed) == ["q1-values", "q1-hidden", "q1-through", "q2-hidden"]
    # a cell that binds a name anew stays below the one that bound it
    assert [text for text in executed if "result = " in text][:2][1] == "result = 10"


def test_what_a_fault_breaks_in_other_questions_is_found(lab: Lab, executed: list[str]) -> None:
    assert set(run_lab(lab, {"q1": TRIPLED})) == set(EVERY) - {"q2-values"}
    executed.clear()
    assert list(run_lab(lab, {"q1": TRIPLED}, first=True)) == met(executed) == ["q1-values"], "and no more, if asked"


def test_cells_above_run_once_and_leave_every_answer_the_same(lab: Lab, executed: list[str]) -> None:
    spoils = "def double(number):\n    shared[0] = shared[0] or {0}\n    return number + number + {0} - shared[0]"
    first, second = (run_lab(lab, {"q1": spoils.format(run)}) for run in (1, 2))
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


NO_ANSWERS: dict[str, tuple[str, str, type[BaseException], str]] = {
    "of a cell that is not there": ("q9", "pass", ValueError, "lab90_means has no answer cell q9"),
    "that is no Python": ("q1", "def double(number) return 0", SyntaxError, "expected ':'"),
    "that is Ctrl-C, not a limit": ("q1", "def double(n):\n    raise KeyboardInterrupt", KeyboardInterrupt, "^$"),
}


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("what", NO_ANSWERS)
def test_what_is_no_wrong_answer_ends_the_run(lab: Lab, what: str) -> None:
    cell, source, error, words = NO_ANSWERS[what]
    with pytest.raises(error, match=words):
        run_lab(lab, {cell: source})


@pytest.mark.usefixtures("terminal")  # the clock interrupts as Ctrl-C does
def test_an_answer_that_does_not_end_costs_its_limit(lab: Lab) -> None:
    endless = "def double(number):\n    while True:\n        time.sleep(0.01)"
    failures = run_lab(lab, {"q1": endless}, limit_s=0.3)
    assert failures["q1-values"] == "TimeoutError: no end after 0.3 s"
    assert set(failures) == set(EVERY) - {"q2-values"}


ALL, TRIPLES = "q1-values q1-hidden q1-through", "- return number + number\n+ return 3 * number"
RARE = "- return number + number\n+ return 7 if number == 7 else number + number"
COMPLAINTS: dict[str, tuple[str, str, list[str]]] = {
    "loses what it names": (ALL, TRIPLES, []),
    "may lose more in one run, as in a race": ("q1-values q1-hidden? q1-through", TRIPLES, []),
    "may lose less in another": ("q1-values q1-hidden?", RARE, ["does not lose q1-values"]),
    "loses nothing": ("q1-values", "- number + number\n+ 2 * number", ["does not lose q1-values"]),
    "loses less": (
        ALL,
        "- return number + number\n+ return 2 * abs(number)",
        ["does not lose q1-values", "does not lose q1-through"],
    ),
    "loses more": ("q1-values q1-through", TRIPLES, ["loses q1-hidden, which it does not name: CheckFailed"]),
    "names what is not there": ("q1-value", "- number + number\n+ 7", ["q1 of lab90_means has no check q1-value"]),
    "names another question's": ("q1-values q2-hidden", "- number + number\n+ 7", ["has no check q2-hidden"]),
    "breaks a check down": (
        ALL,
        "- return number + number\n+ return None if number == 2 else 7",
        ["q1-through must say what is wrong, not crash: AttributeError"],
    ),
}


def fault(lab: Lab, loses: str, edits: str) -> Fault:
    (only,) = parse(lab.root / "tests" / "mutants" / "lab90" / "q1.diff", f"# Wrong.\nwrong: {loses}\n{edits}")
    return only


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
