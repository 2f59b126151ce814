"""The committed lessons match their sources and were run; nothing is executed here."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_tools.author.builder import check
from course_tools.lessons import Lesson, all_lessons

READS = ("lessons/*.ipynb", "lessons/src/*.py")
LESSONS = all_lessons(Path(__file__).parents[2])


def test_there_are_lessons() -> None:
    assert LESSONS


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_the_notebook_is_what_its_source_builds(lesson: Lesson) -> None:
    assert check(lesson) == []


def test_every_turn_is_open_in_the_stored_notebook_and_its_solution_passed() -> None:
    """What readers get is a stub that does not pass, and a cell whose text tells nothing and whose function did."""
    for lesson in LESSONS:
        cells = [cell for cell in nbformat.read(lesson.notebook, as_version=4).cells if cell.cell_type == "code"]
        turns = [cell for cell in cells if "@your_turn(" in cell.source]
        solutions = [cell for cell in cells if "solution" in cell.metadata.get("tags", [])]
        assert len(turns) == len(solutions) == sum("%solution " in cell.source for cell in cells), lesson.name
        for cell in turns:
            assert "Not written yet" in str(cell.outputs), f"{lesson.name}: {cell.source}"
        for cell in solutions:
            assert "This one stands in until yours" in str(cell.outputs), f"{lesson.name}: {cell.source}"
            assert "<details" in str(cell.outputs) and "def " not in cell.source, f"{lesson.name}: {cell.source}"
            assert cell.metadata["jupyter"]["source_hidden"] and cell.metadata["cellView"] == "form"


def test_no_lesson_is_promised_any_more() -> None:
    assert [lesson.name[:2] for lesson in LESSONS] == [f"{number:02}" for number in range(18)]
    assert not [lesson.name for lesson in LESSONS if "not written yet" in lesson.source.read_text("utf-8")]
