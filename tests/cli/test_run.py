"""`course run`: what it counts, what it shows of a failure, and that it never touches a notebook."""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path

import nbformat
import pytest
from rich.console import Console

from course_tools.lessons import Lesson
from course_tools.running import ComparedRow, LessonRun, read_checks, table
from tests.cli.conftest import Course, call_course, make_course, write_notebook

pytestmark = pytest.mark.notebook


def row(name: str, text: str) -> list[str]:
    """The cells of a lesson's row in the table."""
    line = next(line for line in text.splitlines() if re.match(rf"\s*{name}\s+(passed|failed)\b", line))
    return re.split(r"\s{2,}", line.strip())


def test_the_table_counts_checks_and_names_the_worst(course: Course, root: Path) -> None:
    before = (root / "lessons" / "00_good.ipynb").read_bytes()
    result = course("run", "0")
    assert result.returncode == 0, result.stdout + result.stderr
    name, verdict, seconds, checks, ratio, worst = row("00_good", result.stdout)
    assert (name, verdict, checks, ratio, worst) == ("00_good", "passed", "3", "0.99", "a little less")
    assert 0.1 < float(seconds) < 100
    assert (root / "lessons" / "00_good.ipynb").read_bytes() == before


FAILING = {
    "02_raises": (["x = 1", "y = x / 0  # here"], ["y = x / 0  # here", "ZeroDivisionError"]),
    "03_comparison": (
        ["from course_kit.compare import compare", "compare(predicted=1, measured=2)"],
        ["compare(predicted=1, measured=2)", "ComparisonError: measurement and prediction disagree"],
    ),
    "04_kernel_dies": (["x = 1", "import os\nos._exit(3)"], ["os._exit(3)", "DeadKernelError"]),
}


@pytest.fixture(scope="module")
def after_failures(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """`course run` on four lessons that fail, and some that run before and after them."""
    root = make_course(tmp_path_factory.mktemp("failures"))
    for name, (cells, _) in FAILING.items():
        write_notebook(root, name, cells)
    write_notebook(root, "06_last", ["print('last')"])
    return call_course(root, "run")


@pytest.mark.parametrize("name", FAILING)
def test_a_failing_cell_is_shown_and_the_other_lessons_still_run(
    after_failures: subprocess.CompletedProcess[str], name: str
) -> None:
    said = after_failures.stdout
    assert after_failures.returncode == 1 and row(name, said)[1] == "failed"
    problem = said.partition(f"✗ {name}\n")[2].partition("\n✗ ")[0]
    assert all(words in problem for words in FAILING[name][1]), said
    assert row("06_last", said)[1] == "passed", said
    assert "Traceback" not in after_failures.stderr


def test_a_cell_that_does_not_end_fails(course: Course, root: Path) -> None:
    write_notebook(root, "05_too_slow", ["import time", "time.sleep(60)"])
    result = course("run", "5", "--timeout", "1.5")
    assert result.returncode == 1 and "a cell did not end within 1.5 s:\n\ntime.sleep(60)" in result.stdout


def test_every_table_is_listed_with_where_its_numbers_come_from(course: Course, root: Path) -> None:
    imports = "from course_lib import predict\nfrom course_kit.compare import compare"
    imports += "\ndef counted():\n    n = 100\n    return n"
    honest = "x = counted()\ncompare(predicted=predict.inference_buffers([50, 50]), measured=x)"
    circular = "compare(predicted=x, measured=x)"
    write_notebook(root, "00_good", [imports, "%timeit -n 1 -r 1 pass", honest, circular])
    said = course("run", "0", "--checks").stdout
    assert re.search(r"2 +1 +predict\.inference_buffers +counted", said), said
    assert re.search(r"3 +1 +counted +both sides are the same", said), said


def test_old_outputs_in_the_file_are_not_counted(course: Course, root: Path) -> None:
    path = write_notebook(root, "00_good", ["x = 1"])
    notebook = nbformat.read(path, as_version=4)
    stale = {"course": {"checks": [{"name": "old", "ratio": 1.0, "tolerance": 0, "ok": True}]}}
    notebook.cells[0].outputs = [nbformat.v4.new_output("display_data", metadata=stale)]
    assert len(read_checks(notebook)) == 1
    nbformat.write(notebook, path)
    assert row("00_good", course("run", "0").stdout)[3] == "0"


def test_a_narrow_window_cuts_no_number() -> None:
    check = ComparedRow("a name of seven words or so", 1.001, True)
    results = [LessonRun(Lesson(Path(), "03_activation_checkpointing"), 123.4, [check])]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(results))
    assert row("03_activation_checkpointing", console.export_text())[:5][1:] == ["passed", "123.4", "1", "1.001"]


def test_half_is_as_bad_as_double_and_infinite_is_worst(tmp_path: Path) -> None:
    a, b, c = ComparedRow("a", 2.1, True), ComparedRow("b", 0.45, True), ComparedRow("c", None, True)
    assert LessonRun(Lesson(tmp_path, "00"), checks=[a, b]).worst == b
    assert LessonRun(Lesson(tmp_path, "00"), checks=[a, c, b]).worst == c
    assert LessonRun(Lesson(tmp_path, "00")).worst is None


def test_a_lesson_that_was_never_built_fails(course: Course, root: Path) -> None:
    (root / "lessons" / "src").mkdir()
    (root / "lessons" / "src" / "02_new.py").touch()
    result = course("run", "2")
    assert result.returncode == 1 and "course build 02" in result.stdout
