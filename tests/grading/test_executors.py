"""Threads here or a Dask cluster of real worker processes: the same results, and a lost worker stops nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from course_tools.grading import executors
from course_tools.grading.executors import DaskExecutor, fingerprint, open_executor
from course_tools.grading.grade import grade_batch, grade_one
from course_tools.grading.intake.submissions import Submission
from course_tools.grading.report.results import Result
from course_tools.grading.sandbox.limits import Limits

from .conftest import QUICK, notebook, submission

READS = ("course_*/**/*",)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A scheduler and two worker processes; a task may lose one worker, not two."""
    import dask.config as settings
    from distributed import LocalCluster

    # A lost worker's place is given up if no other stands there in time, 15 s: too few where starting one takes longer.
    patient = {"distributed.deploy.lost-worker-timeout": "10 minutes"}
    with settings.set({"distributed.scheduler.allowed-failures": 1, **patient}):
        options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
        with LocalCluster(host="127.0.0.1", **options) as made:
            yield made


@pytest.fixture
def dask_executor(cluster: Any) -> Iterator[DaskExecutor]:
    from distributed import Client

    with Client(cluster, set_as_default=False) as client:  # the test before may have cost workers: others start
        client.wait_for_workers(2, timeout=200)
    with open_executor(_name(cluster), 1) as executor:
        assert isinstance(executor, DaskExecutor)
        yield executor


def test_both_give_the_same_results(dask_executor: DaskExecutor, key: NotebookNode, tmp_path: Path) -> None:
    handed_in = [
        submission(notebook(key), "right"),
        submission(notebook(key, q1="def moving_average(numbers, width):\n    return numbers\n"), "wrong"),
        submission(b"<html>", "page"),
    ]
    text = nbformat.writes(key)
    far = grade_batch(text, handed_in, QUICK, tmp_path / "far", executor=dask_executor)
    with open_executor("local", 2) as threads:
        near = grade_batch(text, handed_in, QUICK, tmp_path / "near", executor=threads)
    assert [replace(result, seconds=0) for result in far] == [replace(result, seconds=0) for result in near]
    assert [(result.points, result.status) for result in far] == [(60, "graded"), (20, "graded"), (0, "unreadable")]
    assert sorted(path.name for path in (tmp_path / "far").iterdir()) == ["page.json", "right.json", "wrong.json"]


def test_a_submission_whose_worker_is_lost_is_tried_again(dask_executor: DaskExecutor, tmp_path: Path) -> None:
    assert dask_executor.submit(_die_once, str(tmp_path / "died")).result(timeout=200) == "second try"


@pytest.mark.nightly
def test_a_submission_that_loses_every_worker_is_reported_and_the_others_go_on(
    dask_executor: DaskExecutor, key: NotebookNode, tmp_path: Path
) -> None:
    handed_in = [submission(b"", "bad"), *(submission(b"<html>", f"s{i}") for i in range(3))]
    executor = _DeadlyFor(dask_executor)
    results = grade_batch(nbformat.writes(key), handed_in, QUICK, tmp_path, executor=executor)
    assert [result.status for result in results] == ["not graded", *["unreadable"] * 3]
    assert "KilledWorker" in results[0].notes[0] and results[0].digest == "", "it would not be tried again"


def test_equal_submissions_are_each_graded(dask_executor: DaskExecutor) -> None:
    """Dask would give the same answer for the same arguments, and cancel both when one is cancelled."""
    first, second = dask_executor.submit(time.time_ns), dask_executor.submit(time.time_ns)
    assert first.result() != second.result()


PRELOADS = {
    "cannot load the course": "import sys; sys.modules['course_lib'] = None",
    "has the course as 0.0.9": "import course_tools.grading.executors as e; e.fingerprint = lambda: '0.0.9+old'",
}


@pytest.mark.parametrize("said", PRELOADS)
def test_a_worker_with_another_course_is_refused(said: str) -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0") as empty:
        address = _name(empty).replace("dask", "tcp")
        command = [sys.executable, "-m", "dask", "worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard"]
        worker = subprocess.Popen([*command, "--preload", PRELOADS[said]], stderr=subprocess.DEVNULL)
        try:
            with pytest.raises(ValueError, match=said) as problem, open_executor(_name(empty), 1):
                pass
        finally:
            worker.terminate()
            worker.wait(30)
    assert fingerprint() in str(problem.value)


def test_a_cluster_that_is_not_there(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    monkeypatch.setattr(executors, "_WAIT_S", 1.0)
    with (
        pytest.raises(ValueError, match=r"no Dask scheduler answers at 127\.0\.0\.1:9 "),
        open_executor("dask://127.0.0.1:9", 1),
    ):
        pass
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0") as empty,
        pytest.raises(ValueError, match="has no workers; start some"),
        open_executor(_name(empty), 1),
    ):
        pass


@pytest.mark.parametrize("name", ["dask://", "dask://host", "ray://host:1", "Local", ""])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="give local, or dask://HOST:PORT"), open_executor(name, 1):
        pass


def test_dask_is_only_needed_by_those_who_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, course_tools.cli, course_tools.grading.batch, course_tools.grading.executors as e\n"
    code += "with e.open_executor('local', 1) as pool: assert pool.submit(max, 1, 2).result() == 2\n"
    code += "assert not {'dask', 'distributed'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(ValueError, match=r"pip install 'bigger-than-one-gpu\[cluster\]'"),
        open_executor("dask://h:1", 1),
    ):
        pass


class _DeadlyFor:
    """An executor on which grading the student `bad` ends the worker."""

    def __init__(self, executor: DaskExecutor) -> None:
        self._executor = executor

    def submit(self, fn: Any, /, *args: Any) -> Any:
        assert fn is grade_one
        return self._executor.submit(_grade_or_die, *args)


def _grade_or_die(key_text: str, handed_in: Submission, limits: Limits) -> Result:
    if handed_in.student == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return grade_one(key_text, handed_in, limits)


def _die_once(marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "second try"


def _name(cluster: Any) -> str:
    return f"dask://{cluster.scheduler_address.removeprefix('tcp://')}"
