"""A batch: one broken submission stops nobody, nothing is lost, nothing is graded twice."""

from __future__ import annotations

import concurrent.futures
import csv
import dataclasses
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import psutil
import pytest
from nbformat import NotebookNode
from typer.testing import CliRunner

from course_tools import choosing, cli
from course_tools.grading import commands
from course_tools.grading import grade as grading
from course_tools.grading.grade import grade_batch, grade_one
from course_tools.grading.intake.submissions import Submission
from course_tools.grading.report.results import (
    GRADED,
    NOT_GRADED,
    RESULTS,
    UNREADABLE,
    WRONG_LAB,
    Result,
    load_all,
    save,
)
from course_tools.grading.sandbox import processes as sandbox
from tests.grading.conftest import (
    MEAN_OF_RANKS,
    MOVING_AVERAGE,
    QUICK,
    TINY,
    end,
    kernel_folders,
    notebook,
    submission,
)
from tests.grading.making import result as made

pytestmark = pytest.mark.notebook
WRONG = "def half(number):\n    return 0\n"


@pytest.fixture
def key_text(key: NotebookNode) -> str:
    return nbformat.writes(key)


def instant(key_text: str, one: Submission, limits: object) -> Result:
    """In place of `grade_one`, where a test is about the batch: no kernel, points from the name."""
    if one.student == "crash":
        raise RuntimeError("boom")
    return dataclasses.replace(grading._blank(grading._read_key(key_text), one, grading.digest_of(key_text, one)))


def test_broken_submissions_do_not_stop_the_batch(key: NotebookNode, key_text: str, tmp_path: Path) -> None:
    other = notebook(key)
    other.metadata["course"]["lab"] = "lab91_other"
    batch = [
        submission(b"<html></html>", "html"),
        submission(b"", "empty"),
        submission(nbformat.writes(notebook(key)).encode()[:-400], "cut"),
        submission(other, "other"),
        dataclasses.replace(submission(b"", "large"), problem="the file is larger than 20 MiB"),
        submission(notebook(key), "right"),
        submission(notebook(key, q3=WRONG), "wrong"),
    ]
    results = grade_batch(key_text, batch, QUICK, tmp_path / "results", jobs=2)
    assert [r.student for r in results] == [s.student for s in batch]
    assert {r.student: r.status for r in results} == {
        "html": UNREADABLE,
        "empty": UNREADABLE,
        "cut": UNREADABLE,
        "other": WRONG_LAB,
        "large": UNREADABLE,
        "right": GRADED,
        "wrong": GRADED,
    }, [r.notes for r in results]
    assert [r.points for r in results] == [0, 0, 0, 0, 0, 60, 40]
    assert all(r.out_of == 60 and len(r.checks) == 4 for r in results) and all(r.notes for r in results[:5])
    assert sorted(r.student for r in load_all(tmp_path)) == sorted(r.student for r in results)


def test_resume_takes_what_still_holds(
    key: NotebookNode, key_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def counting(text: str, one: Submission, limits: object) -> Result:
        ran.append(one.student)
        return instant(text, one, limits)

    monkeypatch.setattr(grading, "grade_one", counting)
    batch = [submission(notebook(key), name) for name in ("ada", "bob", "crash")]
    first = grade_batch(key_text, batch, QUICK, tmp_path)
    assert [*sorted(ran[:3]), *ran[3:]] == ["ada", "bob", "crash", "crash"], "the grader's own failure: once more"
    assert (first[2].status, first[2].digest) == (NOT_GRADED, "") and "boom" in first[2].notes[0]
    ran.clear()
    changed = [batch[0], submission(notebook(key, q3=WRONG), "bob"), batch[2]]
    assert grade_batch(key_text, changed, QUICK, tmp_path, resume=True)[0] == first[0]
    assert sorted(ran) == ["bob", "crash", "crash"], "a changed submission and an error of the grader are graded again"
    ran.clear()
    grade_batch(key_text + " ", batch[:1], QUICK, tmp_path, resume=True)
    grade_batch(key_text, batch[:1], QUICK, tmp_path)
    assert ran == ["ada", "ada"], "a changed lab, and no --resume"
    (tmp_path / "ada.json").write_text("{", "utf-8")
    assert grade_batch(key_text, batch[:1], QUICK, tmp_path, resume=True)[0].student == "ada"


@pytest.mark.nightly  # test_executors.py compares them, too
def test_any_executor_gives_the_same(key: NotebookNode, key_text: str, tmp_path: Path) -> None:
    batch = [submission(notebook(key), "ada"), submission(notebook(key, q3=WRONG), "bob")]
    assert pickle.loads(pickle.dumps((grade_one, batch, QUICK)))[1] == batch
    here = grade_batch(key_text, batch, QUICK, tmp_path / "here", jobs=2)
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        there = grade_batch(key_text, batch, QUICK, tmp_path / "there", executor=pool)
    assert [dataclasses.replace(r, seconds=0) for r in here] == [dataclasses.replace(r, seconds=0) for r in there]
    assert [r.points for r in here] == [60, 40]


@pytest.fixture
def course(tmp_path: Path, full_key: NotebookNode) -> Path:
    """A folder of three submissions; the second takes its time."""
    slow = "import time\ntime.sleep(600)\n"
    for name, q1 in {"ada": "", "bob": slow, "zoe": slow}.items():
        book = notebook(full_key, **({"q1": q1} if q1 else {}))
        (tmp_path / "in" / name).mkdir(parents=True)
        nbformat.write(book, tmp_path / "in" / name / "lab90_tiny.ipynb")
    return tmp_path


@pytest.fixture
def batch(course: Path) -> Iterator[subprocess.Popen[str]]:
    """The command on that folder, in a process of its own, when the first is graded and the second has a kernel."""
    call = "import tests.grading.test_grade as t; t.run_course()"
    command = [sys.executable, "-c", call, "grade", "lab90", str(course / "in"), "--out", str(course / "out")]
    command += ["-j", "1", "--cell-timeout", "500", "--resume"]
    root, pipe = Path(__file__).parents[2], subprocess.PIPE
    with subprocess.Popen(command, cwd=root, stdout=pipe, stderr=subprocess.STDOUT, text=True) as grader:
        started, kernels, folders = psutil.Process(grader.pid), [], set()
        try:
            wait_until(lambda: (course / "out" / "results" / "ada.json").exists())
            wait_until(lambda: len(started.children(recursive=True)) > 1)  # beside the zygote
            kernels = started.children(recursive=True)
            folders = kernel_folders(kernels)
            yield grader
        finally:
            end([started, *kernels], folders)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        pytest.param("terminal", signal.SIGINT, id="ctrl_c"),
        pytest.param("background", signal.SIGTERM, id="kill", marks=pytest.mark.nightly),
    ],
)
def test_who_stops_a_batch_keeps_what_is_finished_and_every_kernel_ends(
    course: Path, way: str, kind: str, number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(kind)
    grader = request.getfixturevalue("batch")
    kernels = psutil.Process(grader.pid).children(recursive=True)
    grader.send_signal(number)
    said, _ = grader.communicate(timeout=120)
    assert grader.returncode == 130
    assert "1 of 3 are graded" in said and "--resume" in said and "Traceback" not in said
    assert [path.name for path in (course / "out" / "results").iterdir()] == ["ada.json"]
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in kernels)


def test_after_a_stopped_batch_this_process_grades_again(
    key: NotebookNode, key_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(result: Result) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(grading, "grade_one", instant)
        grade_batch(key_text, [submission(b"", "ada")], QUICK, tmp_path, on_result=stop)
    assert grade_one(key_text, submission(notebook(key)), QUICK).status == GRADED


@pytest.mark.usefixtures("terminal")
def test_ctrl_c_is_heard_though_another_thread_gets_it(key_text: str, tmp_path: Path) -> None:
    never: concurrent.futures.Future[Result] = concurrent.futures.Future()
    elsewhere: Any = SimpleNamespace(submit=lambda *given: never)
    press = threading.Timer(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    give_up = threading.Timer(20, lambda: never.set_exception(TimeoutError()))
    start = time.monotonic()
    try:
        press.start()
        give_up.start()
        with pytest.raises(KeyboardInterrupt):
            grade_batch(key_text, [submission(b"", "ada")], QUICK, tmp_path, executor=elsewhere)
    finally:
        give_up.cancel()
        sandbox.allow()  # as the next batch would: a foreign executor's workers may still run
    assert time.monotonic() - start < 10


def test_the_command(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_course(monkeypatch.setattr)
    shutil.rmtree(course / "in" / "bob")
    shutil.rmtree(course / "in" / "zoe")
    assert "ada: 100 of 100, graded" in graded(course, "1")
    assert {"grades.csv", "feedback", "results"} <= {path.name for path in (course / "out").iterdir()}
    nothing = CliRunner().invoke(cli.app, ["grade", "lab90", str(course / "none")])
    assert nothing.exit_code == 2 and "nothing of that name" in " ".join(nothing.output.split())
    zero = CliRunner().invoke(cli.app, ["grade", "lab90", str(course / "in"), "--wall", "0"])
    assert zero.exit_code == 2 and "above 0" in zero.output


@pytest.mark.nightly
def test_the_command_with_one_who_takes_their_time(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_course(monkeypatch.setattr)
    shutil.rmtree(course / "in" / "zoe")
    said = graded(course, "2")
    assert "ada: 100 of 100, graded" in said and "bob: 60 of 100, graded" in said
    assert re.search(r"graded\W+2", said)


def graded(course: Path, jobs: str) -> str:
    """What the command prints."""
    options = ["--out", str(course / "out"), "-j", jobs, "--cell-timeout", "25", "--memory", "3", "--wall", "300"]
    ran = CliRunner().invoke(cli.app, ["grade", "lab90", str(course / "in"), *options])
    assert ran.exit_code == 0, ran.output
    return ran.output


def test_who_was_graded_earlier_keeps_a_row(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_course(monkeypatch.setattr)
    monkeypatch.setattr(grading, "grade_one", instant)
    command = ["grade", "lab90", "--out", str(course / "out")]
    CliRunner().invoke(cli.app, [*command, str(course / "in")])
    shutil.rmtree(course / "in" / "ada")
    shutil.rmtree(course / "in" / "bob")
    (course / "in" / "zoe").rename(course / "in" / "late")
    ran = CliRunner().invoke(cli.app, [*command, str(course / "in")])
    assert ran.exit_code == 0 and "3 of these 4 were graded earlier" in ran.output, ran.output
    rows = (course / "out" / "grades.csv").read_text("utf-8-sig").splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ['"ada"', '"bob"', '"late"', '"zoe"']


def test_adjustments_stay_in_whatever_order_commands_run(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_course(monkeypatch.setattr)
    monkeypatch.setattr(grading, "grade_one", instant)
    monkeypatch.chdir(course)
    out, file = course / "out", course / "adjustments.csv"
    file.write_text("student,question,points,days_late,comment\nada,q1,+30,,\nbob,,20,,\nbob,,,1,\n", "utf-8")
    grade, feedback = ["grade", "lab90", "in", "--out", "out"], ["feedback", "out"]

    def run(*arguments: str, code: int = 0) -> str:
        ran = CliRunner().invoke(cli.app, [*arguments])
        assert ran.exit_code == code, ran.output
        return " ".join(ran.output.split())

    def totals() -> list[float]:
        with (out / "grades.csv").open(encoding="utf-8-sig", newline="") as rows:
            return [float(row["total"]) for row in csv.DictReader(rows)]

    assert "adjustments" not in run(*grade) and totals() == [0, 0, 0]
    assert "--late PERCENT" in run(*feedback, "--adjust", "adjustments.csv", code=2) and totals() == [0, 0, 0]
    assert "with 3 adjustments from adjustments.csv; each day late costs 10 %" in run(
        *feedback, "--adjust", "adjustments.csv", "--late", "10"
    )
    for command in (grade, feedback, [*grade, "--resume"]):
        assert totals() == [30, 10, 0] and "with 3 adjustments from" in run(*command), command
    run(*feedback, "--late", "5")
    run(*grade)
    assert totals() == [30, 15, 0], "what is given again replaces only itself"
    file.write_text("student,points\nnobody,3\n", "utf-8")
    said = run(*grade, code=2)
    assert "no student is called 'nobody'" in said and "course feedback" in said and totals() == [30, 15, 0]
    (out / "results" / "ada.json").unlink()
    file.unlink()
    assert "cannot be read" in run(*grade, code=2) and not (out / "results" / "ada.json").exists(), "before grading"
    (out / "adjustments.json").unlink()
    run(*grade)
    assert totals() == [0, 0, 0]


def test_results_of_another_lab_are_not_mixed_in(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_course(monkeypatch.setattr)
    monkeypatch.setattr(grading, "grade_one", instant)
    save(dataclasses.replace(made("ada"), lab="lab01_other"), course / "out" / RESULTS)
    ran = CliRunner().invoke(cli.app, ["grade", "lab90", str(course / "in"), "--out", str(course / "out")])
    assert ran.exit_code == 2 and "results of another lab" in " ".join(ran.output.split())
    assert [path.name for path in (course / "out").rglob("*") if path.is_file()] == ["ada.json"]


def use_tiny_course(set_attribute) -> None:
    for module in (choosing, commands):
        set_attribute(module, "course_root", lambda: TINY.root)


def run_course() -> None:
    """The command, in a process of its own, with the tiny course."""
    use_tiny_course(setattr)
    cli.app()


def wait_until(happens, patience_s: float = 150) -> None:
    end = time.monotonic() + patience_s
    while not happens():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def test_feedback_tells_the_part_of_hidden_tests_that_failed_and_names_cells_by_their_first_line(
    full_key: NotebookNode,
) -> None:
    none = MOVING_AVERAGE.replace("    return", "    if len(numbers) < width:\n        return [0.0]\n    return")
    alone = MEAN_OF_RANKS.replace("    dist", "    if dist.get_rank():\n        return value\n    dist")
    book = submission(notebook(full_key, q1=none, q2=alone))
    checks = {check.check: check for check in grade_one(nbformat.writes(full_key), book, QUICK).checks}
    assert checks["q1-hidden"].topic == "Numbers of their own." and not checks["q1-hidden"].message
    assert "(the cell «def mean_of_ranks(value):» line 4)" in checks["q2-values"].message
    assert "cell [" not in checks["q2-values"].message and not checks["q3-hidden"].topic
