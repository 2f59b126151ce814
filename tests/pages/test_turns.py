"""Every turn: its check lives in the lesson's `turns.py`, lets right answers pass and refuses wrong ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

import jupytext
import pytest

from course_kit.notebook import your_turn
from tests.pages.answers import HERE, Function, answers_to, checks_of, lessons_with_turns

SOURCES = {f"lesson{path.name[:2]}": path for path in sorted((HERE.parents[1] / "lessons/src").glob("*.py"))}
LESSONS = lessons_with_turns()


def cases(right: bool) -> Iterator[object]:
    """Every answer that should pass, or every one that should not, with its check."""
    for lesson in LESSONS:
        for check, answers in answers_to(lesson).items():
            told = dict.fromkeys(answers.right, "") if right else answers.wrong
            for answer, words in told.items():
                yield pytest.param(check, answer, words, id=f"{lesson}-{check.__name__}-{answer.__name__}")


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
    known = answers_to(lesson)
    assert set(known) == set(checks_of(lesson).values())
    assert all(answers.right and len(answers.wrong) >= 2 for answers in known.values())


@pytest.mark.parametrize(("check", "answer", "words"), list(cases(right=True)))
def test_a_right_answer_in_another_style_passes(check: Function, answer: Function, words: str) -> None:
    turn = your_turn(check)(answer)
    assert turn.verdict.state == "right", turn.verdict


@pytest.mark.parametrize(("check", "answer", "words"), list(cases(right=False)))
def test_a_wrong_answer_is_told_so(check: Function, answer: Function, words: str) -> None:
    turn = your_turn(check)(answer)
    assert turn.verdict.state == "wrong", turn.verdict
    assert words and words in turn.verdict.message


@pytest.mark.parametrize("lesson", LESSONS)
def test_an_answer_that_does_nothing_is_wrong(lesson: str) -> None:
    def nothing(*arguments: object, **named: object) -> None:
        return None

    for check in checks_of(lesson).values():
        assert your_turn(check)(nothing).verdict.state == "wrong", check.__name__
