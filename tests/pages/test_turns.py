"""Every turn: its check lives in the lesson's `turns.py`, lets right answers pass and refuses wrong ones."""

from __future__ import annotations

import importlib
import re

import jupytext
import pytest

from course_kit.notebook import your_turn
from course_kit.notebook.your_turn import Function
from tests.pages.answers import ROOT, Answer, answers_to

SOURCES = {f"lesson{path.name[:2]}": path for path in sorted(ROOT.glob("lessons/src/*.py"))}
LESSONS = sorted(path.parent.name for path in ROOT.glob("course_pages/lesson*/turns.py"))
ANSWERS = {lesson: answers_to(lesson) for lesson in LESSONS}


def checks_of(lesson: str) -> dict[str, Function]:
    """Checks of a lesson's turns, by name."""
    found = vars(importlib.import_module(f"course_pages.{lesson}.turns"))
    return {name: check for name, check in found.items() if name.startswith("check_")}


def cases() -> list[object]:
    """Every answer, with its lesson."""
    return [
        pytest.param(
            lesson,
            answer,
            id=f"{lesson}-{answer.check}-{answer.name}",
            marks=[pytest.mark.nightly] if answer.nightly else [],
        )
        for lesson, answers in ANSWERS.items()
        for answer in answers
    ]


@pytest.mark.parametrize("lesson", SOURCES)
def test_a_page_holds_stubs_and_no_checks(lesson: str) -> None:
    """A reader who scrolls to a turn meets the contract, not thirty lines that judge it."""
    cells = [cell.source for cell in jupytext.read(SOURCES[lesson]).cells if cell.cell_type == "code"]
    assert not re.findall(r"^def check_\w+", "\n".join(cells), re.M)
    for cell in cells:
        if "@your_turn(" in cell:
            assert re.match(r"(#[^\n]*\n)*@your_turn\(", cell.strip()), cell
    used = re.findall(r"^@your_turn\(turns\.(\w+)", "\n".join(cells), re.M)
    assert sorted(used) == sorted(checks_of(lesson))


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_turn_has_answers(lesson: str) -> None:
    assert {answer.check for answer in ANSWERS[lesson]} == set(checks_of(lesson))
    for check in checks_of(lesson):
        words = [answer.words for answer in ANSWERS[lesson] if answer.check == check]
        assert "" in words and sum(map(bool, words)) >= 2, check


@pytest.mark.parametrize("lesson", LESSONS)
def test_an_answer_that_does_nothing_is_wrong(lesson: str) -> None:
    def nothing(*arguments: object, **named: object) -> None:
        return None

    for check in checks_of(lesson).values():
        assert your_turn(check)(nothing).verdict.state == "wrong", check.__name__


@pytest.mark.parametrize(("lesson", "answer"), cases())
def test_an_answer_is_judged_rightly(lesson: str, answer: Answer) -> None:
    """A right one in another style passes; a wrong one is told so, in its words."""
    verdict = your_turn(checks_of(lesson)[answer.check])(answer.function).verdict
    assert verdict.state == ("wrong" if answer.words else "right"), verdict
    assert answer.words in verdict.message
