"""The committed lessons match their sources and were run; nothing is executed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_tools.author import Lesson, all_lessons, check

LESSONS = all_lessons(Path(__file__).parents[2])


def test_there_are_lessons() -> None:
    assert LESSONS


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_the_notebook_is_what_its_source_builds(lesson: Lesson) -> None:
    assert check(lesson) == []
