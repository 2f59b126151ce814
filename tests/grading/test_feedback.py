"""`course feedback`: the same reports again, without a kernel; results are read and never written."""

from __future__ import annotations

import contextlib
import csv
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from course_tools import cli
from course_tools.grading.report.results import save

from .conftest import TINY
from .making import result


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A copy of the tiny course, and results of its lab."""
    shutil.copytree(TINY.root, tmp_path / "course")
    folder = tmp_path / "course" / "grades" / TINY.name
    save(result("ada", failed={"q1-values": "expected 2"}), folder / "results")
    save(result("bob", "=Bob"), folder / "results")
    return folder


def feedback(out: Path, *arguments: str) -> Result:
    with contextlib.chdir(out.parents[1]):
        return CliRunner().invoke(cli.app, ["feedback", str(out), *arguments])


def totals(out: Path) -> dict[str, float]:
    with (out / "grades.csv").open(encoding="utf-8-sig", newline="") as file:
        return {row["student"]: float(row["total"]) for row in csv.DictReader(file)}


def test_adjustments_are_put_on_and_can_be_put_on_again(out: Path) -> None:
    before = {path: path.read_bytes() for path in (out / "results").iterdir()}
    (out / "adjust.csv").write_text("student,question,points,days_late\nada,q1,5,\nbob,,,2\n", "utf-8")
    done = feedback(out, "--adjust", str(out / "adjust.csv"), "--late", "10")
    assert done.exit_code == 0 and "2 reports" in done.stdout, done.output
    assert totals(out) == {"ada": 85, "bob": 80}
    assert "2 days late" in (out / "feedback" / "bob.md").read_text("utf-8")

    assert feedback(out, "--adjust", str(out / "adjust.csv"), "--late", "10").exit_code == 0
    assert totals(out) == {"ada": 85, "bob": 80}, "the adjustments were counted twice"
    assert feedback(out).exit_code == 0 and totals(out) == {"ada": 85, "bob": 80}, "they stay until they are taken off"
    (out / "adjustments.json").unlink()
    assert feedback(out).exit_code == 0 and totals(out) == {"ada": 80, "bob": 100}
    assert {path: path.read_bytes() for path in (out / "results").iterdir()} == before


def test_a_wrong_line_stops_it_and_changes_nothing(out: Path) -> None:
    assert feedback(out).exit_code == 0
    before = (out / "grades.csv").read_bytes()
    (out / "adjust.csv").write_text("student,points\nada,5\nadda,3\n", "utf-8")
    done = feedback(out, "--adjust", str(out / "adjust.csv"))
    assert done.exit_code == 2 and "line 3" in done.stdout and "did you mean ada" in done.stdout
    assert (out / "grades.csv").read_bytes() == before


def test_it_says_when_the_lab_has_changed_since(out: Path) -> None:
    assert "grade them again" not in feedback(out).stdout
    source = out.parents[1] / "solutions" / "src" / f"{TINY.name}.py"
    source.write_text(source.read_text("utf-8").replace('"q3-values" points=10', '"q3-values" points=5'), "utf-8")
    done = feedback(out)
    assert done.exit_code == 0 and "2 of these were graded with other checks" in " ".join(done.stdout.split())


@pytest.mark.parametrize(("term", "word"), [("", "two"), ("fall", "three")])
def test_reports_have_the_numbers_with_which_was_graded(out: Path, term: str, word: str) -> None:
    source = out.parents[1] / "solutions" / "src" / f"{TINY.name}.py"
    text = source.read_text("utf-8").replace("· Windows (", "· Windows of TERM_WORD (")
    source.write_text(text + '\n# %% term=true\nTERM_WORD = ("two", "three")\n', "utf-8")
    (source.parents[1] / "term.txt").write_text("spring\n", "utf-8")  # of a later release
    for student in ("ada", "bob"):
        save(result(student, term=term), out / "results")
    assert feedback(out).exit_code == 0
    assert f"Windows of {word}" in (out / "feedback" / "ada.md").read_text("utf-8")


def test_a_folder_without_results_is_refused(out: Path) -> None:
    done = feedback(out.parent)
    assert done.exit_code == 2 and "holds no results" in done.stdout
    (out / "results" / "ada.json").write_text("{", "utf-8")
    done = feedback(out)
    assert done.exit_code == 2 and "not a result" in " ".join(done.stdout.split())
