"""One source, two notebooks: stubs without secrets for students, a solved and executed one for instructors."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_tools.author.builder import BuildError
from course_tools.author.lab_builder import build_lab, check_lab
from course_tools.author.lab_source import questions, read_lab, student_version
from course_tools.labs import Lab, find_labs

from .conftest import SOURCE, make_lab

Q1_TO_Q2 = SOURCE[SOURCE.index('# %% check="q1-values"') : SOURCE.index("check.equal(check.on_ranks")]
BORROWED = Q1_TO_Q2.replace("points=40\n", "points=40\nWIDE = 2\n").replace("float(dist", "WIDE * float(dist")
ANSWER = SOURCE[SOURCE.index('# %% answer="q1"') : SOURCE.index('# %% check="q1-values"')]
HEADER = "# # Lab 90 · Means\n#\n# | 1 · Windows | 50 |\n# | 2 | Ranks | 40 |\n# | 3 | None | 9 |"
WRONG = {
    "worth 60 points; end the heading": ("(60 points)", "(50 points)"),
    "add up to 110, not 100": ('check="q1-hidden" points=20', 'check="q1-hidden" points=30'),
    "q2 has no hidden check": (SOURCE[SOURCE.index('# %% check="q2-hidden"') :], ""),
    "q1 has checks but no cell to answer in": ('answer="q1"', 'answer="q3"'),
    "'def moving_average.*each '### BEGIN SOLUTION' needs an": ('    ### END SOLUTION\n\n\n# %% check="q1', "#"),
    "needs an '### END HIDDEN TESTS' after it": ("### BEGIN HIDDEN TESTS\n", ""),
    "the topic '#: ranks' does not stand in the comment": ("BEGIN HIDDEN TESTS\n", "BEGIN HIDDEN TESTS\n#: ranks\n"),
    "'# BEGIN HIDDEN TESTS' is no mark": ("### BEGIN HIDDEN TESTS", "# BEGIN HIDDEN TESTS"),
    "'### begin solution' is no mark": ("### BEGIN SOLUTION", "### begin solution"),
    "put '### BEGIN SOLUTION' and '### END SOLUTION' around": (ANSWER, ANSWER.replace("### ", "")),
    "'### BEGIN SOLUTION' belongs into a cell that is marked answer": ('# %% answer="q1"', "# %%"),
    "its options cannot be read": ('answer="q1"', "answer=q1"),
    "has 50 points for question 1; its checks are worth 60": ("# # Lab 90 · Means", HEADER),
    "has 9 points for question 3; there is no such question": ("# # Lab 90 · Means", HEADER),
    "two cells are called q1-values": ('check="q2-values"', 'check="q1-values"'),
    "needs points": ('check="q2-values" points=20', 'check="q2-values"'),
    "unknown option pionts": ("points=40", "pionts=40 points=40"),
    "WIDE is a variable of q1-values, and q2-values reads it": (Q1_TO_Q2, BORROWED),
    "is not a name such as q1": ('answer="q1"', 'answer="first"'),
}


def test_cells_carry_what_nbgrader_reads(lab: Lab) -> None:
    from nbgrader.nbgraderformat import MetadataValidator

    student = student_version(read_lab(lab))
    MetadataValidator().validate_nb(student)
    cells = {cell.metadata.nbgrader.grade_id: cell for cell in student.cells if "nbgrader" in cell.metadata}
    assert cells["q1"].metadata.nbgrader.solution and not cells["q1"].metadata.nbgrader.locked
    assert cells["q1-hidden"].metadata.nbgrader.points == 20 and cells["q1-hidden"].metadata.editable is False


def test_questions_know_their_points_and_what_is_hidden(lab: Lab) -> None:
    first, second = questions(read_lab(lab))
    assert (first.name, first.title, first.points, first.answers) == ("q1", "1 · Windows", 60, ("q1",))
    assert [(check.grade_id, check.hidden) for check in second.checks] == [("q2-values", False), ("q2-hidden", True)]


@pytest.mark.parametrize("complaint", WRONG)
def test_a_lab_with_a_mistake_is_refused_in_words(complaint: str, tmp_path: Path) -> None:
    old, new = WRONG[complaint]
    assert old in SOURCE
    lab = make_lab(tmp_path, SOURCE.replace(old, new, 1))
    with pytest.raises((BuildError, ValueError), match=complaint):
        build_lab(lab)
    assert not lab.notebook.exists() and not lab.solution.exists()


def test_labs_are_found_by_number_name_and_beginning(lab: Lab) -> None:
    for wanted in ("90", "lab90", "lab90_means", str(lab.source)):
        assert find_labs(lab.root, [wanted]) == [lab]
    with pytest.raises(ValueError, match="there is no lab 'lab07'.*\n  lab90_means"):
        find_labs(lab.root, ["7"])


def test_a_solution_that_fails_a_hidden_test_is_not_written(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, SOURCE.replace("[6.0]", "[7.0]"))
    with pytest.raises(Exception, match="one window of three"):
        build_lab(lab)
    assert not lab.notebook.exists() and not lab.solution.exists()


def test_both_notebooks_are_built(built_once: Lab) -> None:
    lab = built_once
    assert check_lab(lab) == []
    student, solved = (nbformat.read(path, as_version=4) for path in (lab.notebook, lab.solution))
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in student.cells)
    text = lab.notebook.read_text("utf-8")
    assert "YOUR CODE HERE" in text and "all_reduce" not in text and "8], 3" not in text and "HIDDEN" not in text
    text = lab.solution.read_text("utf-8")
    assert "all_reduce" in text and "8], 3" not in text and "one window of three" not in text and "BEGIN" not in text
    assert any("✓ windows of two" in str(cell.get("outputs")) for cell in solved.cells)


@pytest.mark.nightly  # as lessons' are: tests/notebooks/test_build.py
def test_they_are_the_same_to_the_byte_again(built: Lab) -> None:
    before = built.notebook.read_bytes(), built.solution.read_bytes()
    assert build_lab(built) is False
    assert (built.notebook.read_bytes(), built.solution.read_bytes()) == before


def test_a_check_shows_no_value_and_its_names_are_gone(built_once: Lab) -> None:
    """Below the students' check would stand the repr of whatever the last call returned."""
    notebook = nbformat.read(built_once.solution, as_version=4)
    assert notebook.cells[-1].source == 'assert "expected" not in globals()' and notebook.cells[-1].execution_count
    (check,) = (cell for cell in notebook.cells if cell.id.endswith("q1-values"))
    assert check.source.startswith("%%check\n")
    assert not [output for output in check.outputs if output.output_type == "execute_result"]


def test_an_edited_notebook_is_noticed(built: Lab) -> None:
    built.notebook.write_text(built.notebook.read_text("utf-8").replace("windows of two", "windows"), "utf-8")
    assert "does not match its source" in check_lab(built)[0]


def test_students_open_labs_without_their_sources(built: Lab) -> None:
    lab = built
    lab.source.unlink()
    assert find_labs(lab.root, ["lab90"]) == [lab] and find_labs(lab.root) == []
    with pytest.raises(ValueError, match="has no source here"):
        build_lab(lab)
