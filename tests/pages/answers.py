"""Answers that readers may give to a turn: what must pass its check, and what must not, with a word of the verdict."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from course_kit.notebook.your_turn import Function

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Answers:
    """Answers to one turn; each is a `def`, never a lambda.

    Attributes:
        right: in another style than the page's own solution.
        wrong: at least two, each with words that its verdict must hold.
    """

    right: list[Function]
    wrong: dict[Function, str]


def lessons_with_turns() -> list[str]:
    """Folders of `course_pages` that hold a `turns.py`: "lesson06"."""
    return sorted(path.parent.name for path in (HERE.parents[1] / "course_pages").glob("lesson*/turns.py"))


def checks_of(lesson: str) -> dict[str, Function]:
    """Checks of a lesson's turns, by name."""
    found = vars(importlib.import_module(f"course_pages.{lesson}.turns"))
    return {name: each for name, each in found.items() if name.startswith("check_")}


def answers_to(lesson: str) -> dict[Function, Answers]:
    """ANSWERS of `tests/pages/lessonNN/answers.py`: check → answers."""
    return importlib.import_module(f"tests.pages.{lesson}.answers").ANSWERS
