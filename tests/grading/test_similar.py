"""Which answers resemble each other: a copy with other names is found, and what was handed out does not count."""

from __future__ import annotations

import csv
from pathlib import Path

import nbformat
import pytest
from typer.testing import CliRunner

from course_tools.author.lab_source import grade_id_of, read_lab, student_version
from course_tools.cli import app
from course_tools.grading.intake.submissions import Submission
from course_tools.grading.report.similar import NO_PROOF, answers_of, similar_pairs
from tests.grading.conftest import TINY

ADA = """\
def moving_average(numbers, width):
    total = sum(numbers[:width])
    means = [total / width]
    for position in range(width, len(numbers)):  # the window moves by one
        total += numbers[position] - numbers[position - width]
        means.append(total / width)
    return means
"""
NAMES = {"total": "acc", "means": "out", "position": "k", "  # the window moves by one": ""}
EVE = """\
def moving_average(numbers, width):
    if len(numbers) < width:
        return []
    head, *tail = numbers
    first = sum((head, *tail[: width - 1])) / width
    return [first, *moving_average(tail, width)]
"""


def ben() -> str:
    text = ADA
    for old, new in NAMES.items():
        text = text.replace(old, new)
    return text


def handed_in(answer: str) -> str:
    """The lab as it was handed out, with one answer."""
    book = student_version(read_lab(TINY))
    for cell in book.cells:
        if answer and grade_id_of(cell) == "q1":
            cell.source = answer
    return nbformat.writes(book)


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    for name, answer in {"ada": ADA, "ben": ben(), "eve": EVE, "zoe": ""}.items():
        (tmp_path / "batch" / name).mkdir(parents=True)
        (tmp_path / "batch" / name / f"{TINY.name}.ipynb").write_text(handed_in(answer), "utf-8")
    return tmp_path / "batch"


def test_a_copy_with_other_names_stands_first_and_the_report_says_that_it_is_no_proof(
    batch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TINY.root)
    out = batch.parent / "out"
    said = CliRunner().invoke(app, ["grade", "lab90", str(batch), "--similar", "--out", str(out)])
    assert said.exit_code == 0, said.output
    with (out / "similar.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = [[*row.values()] for row in csv.DictReader(file)]
    assert [row[:2] for row in rows][0] == ["ada", "ben"] and len(rows) == 3
    assert min(float(share) for share in rows[0][2:]) > 90 and max(float(s) for row in rows[1:] for s in row[2:]) < 30
    page = (out / "similar.html").read_text("utf-8")
    assert NO_PROOF in page and NO_PROOF in " ".join(said.output.split()) and page.count("<mark>") >= 2
    assert "zoe: not compared, nothing was answered" in said.output
    assert not list(out.glob("results/*")), "nothing is graded"


def test_what_was_handed_out_does_not_count_and_texts_are_escaped() -> None:
    own = "def f(x):\n    return '<b>' + str([x ** 3 - 7 for x in range(x % 5)]) + '</b>'\n"
    (pair,) = similar_pairs({"a": f"{ADA}\n{own}", "b": f"{ADA}\n\ny = 3\n"}, given=ADA)
    assert pair.shares == (0, 0) and "&lt;b&gt;" in pair.marked[0]
    (pair,) = similar_pairs({"a": f"{ADA}\n{own}", "b": f"{ADA}\n\ny = 3\n"}, given="")
    assert pair.shares[1] > 0.7


def test_what_cannot_be_read_is_left_out_with_its_reason() -> None:
    _, left_out = answers_of(
        read_lab(TINY), [Submission("ida", "Ida", "x", b"%PDF"), Submission("kim", "Kim", "", problem="no")]
    )
    assert left_out["kim"] == "no" and "cannot be read as a notebook" in left_out["ida"]
