"""A busy machine takes no points: limits count a submission's own time, and what cannot be said is graded again."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from course_kit import own_time
from course_tools.grading import grade as grading
from course_tools.grading.grade import grade_batch, grade_one
from course_tools.grading.report.feedback import as_markdown
from course_tools.grading.report.gradebooks import write_gradebooks
from course_tools.grading.report.reports import grade_rows
from course_tools.grading.report.results import AGAIN, GRADED, Result, load
from course_tools.grading.report.words import TOO_BUSY
from course_tools.grading.sandbox.limits import MIB
from tests.grading.conftest import HALF, QUICK, notebook, submission

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this system does not tell"),
]
COMPUTES = "import time\nend = time.process_time() + 5\nwhile time.process_time() < end:\n    sum(range(2000))\n"
"""What takes five seconds of a core, and of a busy machine a multiple."""
ENDLESS = "def half(number):\n    while True:\n        sum(range(2000))\n"


@pytest.fixture
def crowd() -> Iterator[None]:
    """Four programs for each core, so that a submission has a fifth of the machine: less than limits are stretched."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 * (os.cpu_count() or 1))]
    yield
    for program in programs:
        program.kill()
    for program in programs:
        program.wait()


@pytest.mark.timed
def test_right_answers_keep_their_points_beside_a_crowd(full_key: NotebookNode, crowd: None) -> None:
    """Ranks included; the last answer computes for most of a cell's time, and much longer by the clock on the wall."""
    limits = dataclasses.replace(QUICK, cell_s=7, memory_bytes=4096 * MIB)
    answers = notebook(full_key, q3=f"{COMPUTES}{HALF}")
    result = grade_one(nbformat.writes(full_key), submission(answers), limits)
    assert (result.points, result.status) == (100, GRADED), result.notes


def test_what_a_busy_machine_stopped_is_graded_again_alone(
    key: NotebookNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With limits that are not stretched at all, an endless answer is the machine's fault at the first look."""
    monkeypatch.setattr(own_time, "MOST", 0)
    text, told = nbformat.writes(key), list[str]()
    graded = list[str]()

    def counting(key_text: str, one: object, limits: object) -> Result:
        graded.append(one.student)  # type: ignore[attr-defined]
        return grade_one(key_text, one, limits)  # type: ignore[arg-type]

    monkeypatch.setattr(grading, "grade_one", counting)
    batch = [submission(notebook(key, q3=ENDLESS), "ada"), submission(notebook(key), "bob")]
    limits = dataclasses.replace(QUICK, cell_s=2)
    ada, bob = grade_batch(text, batch, limits, tmp_path, jobs=1, on_result=lambda result: told.append(result.student))
    assert graded == ["ada", "bob", "ada"] and told == ["bob", "ada"]
    assert (ada.status, ada.digest, bob.status) == (AGAIN, "", GRADED)
    assert TOO_BUSY in ada.notes and load(tmp_path / "ada.json") == ada
    monkeypatch.undo()
    ada = grade_batch(text, batch, limits, tmp_path, resume=True)[0]
    assert ada.status == GRADED and ada.points == 40, "and on a quiet machine it is what it is"


def test_nobody_is_blamed_for_a_busy_machine(key: NotebookNode, tmp_path: Path) -> None:
    """No points yet is not no points: out of the gradebooks, and said so."""
    result = dataclasses.replace(grade_one(nbformat.writes(key), submission(notebook(key)), QUICK), status=AGAIN)
    said = as_markdown(result, key)
    assert "not your fault" in said and "did not end" not in said and TOO_BUSY not in said
    write_gradebooks([result, dataclasses.replace(result, student="bob", name="Bob", status=GRADED)], tmp_path, key)
    assert "Bob" in (listed := (tmp_path / "canvas.csv").read_text("utf-8")) and "Ada" not in listed
    assert AGAIN in map(str, grade_rows([result], key)[-1])
