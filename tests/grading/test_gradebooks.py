"""Files for Gradescope, Canvas and Moodle, held against what their importers ask for."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from nbformat import NotebookNode

from course_tools.grading.report.adjustments import Adjustment, apply
from course_tools.grading.report.gradebooks import gradescope, write_gradebooks

from .making import WORTH, result

FAILED = {"q1-values": "expected 2, got 3", "q2-hidden": "a secret"}


@pytest.fixture
def folder(full_key: NotebookNode, tmp_path: Path) -> Path:
    """Gradebooks of a student with a number, one without, and one at whom the grader failed."""
    people = [
        result("ada-17", "Ada Lovelace", failed=FAILED, gradebook_id="17"),
        result("zoe", "zoë"),
        result("x", status="not graded"),
    ]
    write_gradebooks(people, tmp_path, full_key)
    return tmp_path


def rows(path: Path) -> list[list[str]]:
    assert not path.read_bytes().startswith(b"\xef\xbb\xbf"), "importers read the mark as a part of the first column"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_canvas_finds_its_columns_and_students(folder: Path) -> None:
    """As Canvas' importer reads it: the first two columns by name, then the login, then Section, then assignments."""
    header, possible, ada, zoe = rows(folder / "canvas.csv")
    assert "Student" in header[0] and "ID" in header[1] and re.search(r"SIS\s+Login\s+ID", header[2])
    assert "Section" in header[3] and header[4:] == ["Lab 90 (Tiny)"]
    assert not re.search(r"\(\d+\)$", header[4]), "Canvas would take it for the number of an assignment"
    assert "Points Possible" in possible[0] and possible[4] == "100"
    assert ada == ["Ada Lovelace", "17", "", "", "60"]
    assert zoe == ["zoë", "", "zoë", "", "100"]


def test_moodle_finds_its_columns_and_participants(folder: Path) -> None:
    """As Moodle's importer reads it: it cuts `Participant ` off, and refuses a file without these three columns."""
    header, ada, zoe = rows(folder / "moodle.csv")
    assert {"Identifier", "Grade", "Last modified (grade)", "Feedback comments"} <= set(header)
    found = dict(zip(header, ada))
    assert found["Identifier"] == "Participant 17" and float(found["Grade"]) == 60
    assert found["Maximum Grade"] == "100" and "1 · Windows: 20 of 40" in found["Feedback comments"]
    assert found["ID number"] == "", "a participant's number is not the person's, and may be another person's"
    assert zoe[0] == "" and dict(zip(header, zoe))["ID number"] == "zoë"
    assert "secret" not in str(rows(folder / "moodle.csv"))


def test_a_submission_without_points_is_in_no_gradebook(folder: Path) -> None:
    assert not (folder / "gradescope" / "x").exists()
    assert all(len(rows(folder / name)) == n for name, n in (("canvas.csv", 4), ("moodle.csv", 3)))


def test_who_has_no_points_any_more_keeps_none(folder: Path, full_key: NotebookNode) -> None:
    write_gradebooks([result("zoe", "zoë")], folder, full_key)
    assert [path.name for path in (folder / "gradescope").iterdir()] == ["zoe"]


def test_gradescope_reads_tests_with_points_and_visibility(folder: Path) -> None:
    content = json.loads((folder / "gradescope" / "ada-17" / "results.json").read_text("utf-8"))
    assert set(content) <= {"score", "execution_time", "output", "output_format", "stdout_visibility", "tests"}
    assert content["score"] == 60 and content["stdout_visibility"] == "hidden"
    allowed = {"score", "max_score", "status", "name", "name_format", "output", "output_format", "visibility"}
    tests = {test["name"].split(": ")[1]: test for test in content["tests"]}
    assert all(set(test) <= allowed for test in tests.values())
    assert {name: test["max_score"] for name, test in tests.items()} == WORTH
    assert sum(test["score"] for test in tests.values()) == 60
    assert tests["q1-values"]["status"] == "failed" and "got 3" in tests["q1-values"]["output"]
    assert tests["q1-values"]["visibility"] == "visible"
    assert tests["q2-hidden"]["visibility"] == "after_published" and "output" not in tests["q2-hidden"]
    assert "secret" not in json.dumps(content)


def test_gradescope_knows_adjustments(full_key: NotebookNode) -> None:
    given = [Adjustment(2, "ada", "q2", 3.0, None, "fair"), Adjustment(3, "ada", "", None, 2, "see me")]
    content = gradescope(apply([result()], given, late=10)[0], full_key)
    assert content["score"] == 83, "Gradescope takes this number, not the sum of the tests"
    assert "Days late: 2" in content["output"] and "see me" in content["output"]
    by_hand = [test for test in content["tests"] if "by-hand" in test["name"]]
    assert [(test["score"], test["max_score"], test["output"]) for test in by_hand] == [(3, 0, "fair")]
    assert content["output_format"] == "text", "what students wrote must not be rendered"
