"""`course train-grid`: a run that is done stays done, and a file of another kind stays as it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from course_pages.lesson14 import train_grid
from course_pages.lesson14.grid import Job, key
from course_pages.lesson14.train_grid import train_all

JOBS = [Job(8, 2e8), Job(12, 2e8)]
QUIET = Console(quiet=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads for workers, and no training; a job of width 0 is interrupted."""

    def train(job: Job) -> dict[str, float]:
        if not job.width:
            raise KeyboardInterrupt
        return {"loss": 2.0}

    monkeypatch.setattr(train_grid, "ProcessPoolExecutor", lambda workers, *_: ThreadPoolExecutor(workers))
    monkeypatch.setattr(train_grid, "train", train)


@pytest.mark.usefixtures("quick")
def test_what_is_done_stays_done(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    train_all(JOBS[:1], path, 1, QUIET)
    first = json.loads(path.read_text())
    assert set(first["runs"]) == {key(JOBS[0])} and first["about"]["torch"]
    first["runs"][key(JOBS[0])]["loss"] = -1.0  # a mark: a second training would wipe it out
    path.write_text(json.dumps(first))
    train_all(JOBS, path, 2, QUIET)
    second = json.loads(path.read_text())["runs"]
    assert second[key(JOBS[0])]["loss"] == -1.0 and second[key(JOBS[1])]["loss"] == 2.0
    assert not list(tmp_path.glob("*.part"))


def test_another_file_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text('["mine"]')
    with pytest.raises(ValueError, match="holds no runs of this command: give the name of a new file"):
        train_all(JOBS, path, 1, QUIET)
    assert path.read_text() == '["mine"]'


@pytest.mark.usefixtures("quick")
def test_a_stop_keeps_what_is_done(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_all([*JOBS, Job(0, 1e8)], path := tmp_path / "runs.json", 1, QUIET)
    assert set(json.loads(path.read_text())["runs"]) == set(map(key, JOBS))


@pytest.mark.nightly
@pytest.mark.usefixtures("terminal")
def test_ctrl_c_ends_it_at_once_and_keeps_what_is_done(tmp_path: Path) -> None:
    """In a terminal Ctrl-C reaches the program and its workers; the run that would take hours does not hold it up."""
    path, jobs = tmp_path / "runs.json", "[Job(8, 2e8), Job(12, 1e14)]"
    words = (
        "from rich.console import Console; from course_pages.lesson14.train_grid import *; from pathlib import Path; "
    )
    words += f"train_all({jobs}, Path({str(path)!r}), 2, Console(width=500))"
    program = subprocess.Popen(
        [sys.executable, "-c", words], start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        end = time.monotonic() + 240
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.1)
        os.killpg(program.pid, signal.SIGINT)
        said, _ = program.communicate(timeout=30)
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
    assert "runs.json has 1 runs, and the same command goes on from there" in said
    assert set(json.loads(path.read_text())["runs"]) == {key(JOBS[0])} and program.returncode
    with pytest.raises(ProcessLookupError):  # nobody is left; the helper of multiprocessing ends a little later
        for _ in range(100):
            os.killpg(program.pid, 0)
            time.sleep(0.1)
