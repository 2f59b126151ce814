"""INSTRUCTORS.md, done: every command in it runs, in its order, in a small course of its own."""

from __future__ import annotations

import compileall
import contextlib
import csv
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from course_tools import TAUGHT
from course_tools.author.lab_source import grade_id_of, read_lab, student_version
from course_tools.labs import Lab
from tests.labs.faults import read_faults
from tests.labs.running import complaints

READS = ("course_*/**/*", "docs/*")
ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "INSTRUCTORS.md"
LAB = "lab01_block_formats"
SOURCE = '''\
# %% [markdown]
# # Lab 01 · Two halves

# %%
from course_kit.checks import check

# %% [markdown]
# ## 1 · Half (60 points)


# %% answer="q1"
def half(number):
    """Half of it."""
    ### BEGIN SOLUTION
    return number * (1 / 2)  # exact
    ### END SOLUTION


# %% check="q1-values" points=40
check.equal(check.call(half, 3.0), 1.5, "half of three")

# %% check="q1-hidden" points=20
### BEGIN HIDDEN TESTS
check.equal(check.call(half, -8.0), -4.0, "half of something below zero")
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · Double (40 points)


# %% answer="q2"
def double(number):
    """Twice of it."""
    ### BEGIN SOLUTION
    return number + number + 0
    ### END SOLUTION


# %% check="q2-values" points=20
check.equal(check.call(double, 3.0), 6.0, "twice three")

# %% check="q2-hidden" points=20
### BEGIN HIDDEN TESTS
check.equal(check.call(double, -8.0), -16.0, "twice something below zero")
### END HIDDEN TESTS
'''
ANSWERS = {"q1": "def half(number):\n    return number / 2\n", "q2": "def double(number):\n    return 2 * number\n"}
STUDENTS = {"Ada Lovelace": 60.0, "Grace Hopper": 100.0, "Alan Turing": 100.0}
"""Name → points before anything is adjusted: Ada did not solve question 2."""

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Block:
    """A fenced block of the guide: its language, the file that it is, its lines."""

    line: int
    language: str
    file: str
    text: str

    @property
    def commands(self) -> list[str]:
        return [line.removeprefix("$ ") for line in self.text.splitlines()]


def blocks() -> list[Block]:
    """Every fenced block, in order."""
    text = GUIDE.read_text("utf-8")
    found = re.finditer(r"^```(\w*)[ ]?(\S*)\n(.*?)^```$", text, re.M | re.S)
    return [Block(text[: m.start()].count("\n") + 1, m[1], m[2], m[3]) for m in found]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with one small lab, one lesson, and a zip of submissions as Moodle makes it."""
    root = tmp_path_factory.mktemp("guide") / "course"
    lab = Lab(root, LAB)
    lab.source.parent.mkdir(parents=True)
    lab.source.write_text(SOURCE, "utf-8")
    for package in (*TAUGHT, "course_tools"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(root / package, quiet=1)  # once: kernels may not write beside the sources
    (root / "lessons").mkdir()
    shutil.copy(ROOT / "lessons" / "06_collectives.ipynb", root / "lessons")
    for name in ("start.py", "pyproject.toml", "constraints.txt", "README.md"):
        shutil.copy(ROOT / name, root)
    (root / "downloads").mkdir()
    with zipfile.ZipFile(root / "downloads" / "lab01.zip", "w") as archive:
        for number, name in enumerate(STUDENTS, 4711):
            content = nbformat.writes(_handed_in(lab, name))
            archive.writestr(f"{name}_{number}_assignsubmission_file/{LAB}.ipynb", content)
    return root


def test_the_guide_holds_nothing_that_is_not_tested() -> None:
    fences = [line for line in GUIDE.read_text("utf-8").splitlines() if line.lstrip().startswith("```")]
    assert len(fences) == 2 * len(blocks()), "a block that the test does not find"
    for block in blocks():
        assert block.language == "console" or block.file, f"line {block.line}: neither commands nor a file"
        if block.language == "console":
            assert all(line.startswith("$ ") for line in block.text.splitlines()), f"line {block.line}"
    commands = {command.split()[1] for block in blocks() for command in block.commands if command.startswith("course ")}
    assert {"build", "release", "grade", "feedback"} <= commands


def test_the_guide_names_files_that_exist() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", GUIDE.read_text("utf-8")):
        assert (ROOT / link).exists(), link


def test_the_guides_known_wrong_answers_lose_what_they_name(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for block in blocks():
        if "lab20" in block.file:
            (tmp_path / block.file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.file).write_text(block.text, "utf-8")
    faults = read_faults(tmp_path / "tests" / "mutants" / "lab20")
    assert len(faults) == 2
    assert [complaints(Lab(tmp_path, "lab20_softmax"), fault) for fault in faults] == [[], []]


@pytest.mark.nightly
def test_every_command_runs(course: Path) -> None:
    environment = os.environ | {"PATH": f"{_commands(course)}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    for block in blocks():
        if block.language != "console":
            (course / block.file).parent.mkdir(parents=True, exist_ok=True)
            (course / block.file).write_text(block.text, "utf-8")
            continue
        script = "\n".join(["set -e", *block.commands]).replace("8786", port)
        code, output = _run(script, course, environment)
        assert code == 0, f"line {block.line} of {GUIDE.name}:\n{script}\n{output}"
    _look_at_what_is_there(course)


def _look_at_what_is_there(course: Path) -> None:
    """After the last command: grades with adjustments, a second try without, the new lab, the release."""
    lab = course / "grades" / LAB
    adjusted = {"Ada Lovelace": 63, "Grace Hopper": 80, "Alan Turing": 95}
    assert _totals(lab) == adjusted, "grading on the cluster came last, and keeps the adjustments"
    assert _totals(course / "grades" / "lab01_second_try") == STUDENTS
    assert _totals(course / "grades" / "lab20_softmax") == {"empty": 0, "solved": 100}
    assert (course.parent / "handout.zip").is_file() and not (course.parent / "handout" / "solutions").exists()
    for name in ("gradebooks/canvas.csv", "gradebooks/moodle.csv", "feedback/Ada-Lovelace-4711.html"):
        assert (lab / name).is_file(), name
    page = f"Ada Lovelace_4711_assignsubmission_file/{LAB}_feedback.html"
    with zipfile.ZipFile(lab / "gradebooks" / "moodle_feedback.zip") as archive:
        assert archive.read(page) == (lab / "feedback" / "Ada-Lovelace-4711.html").read_bytes()
        assert len(archive.namelist()) == len(STUDENTS)


def _totals(folder: Path) -> dict[str, float]:
    with (folder / "grades.csv").open(encoding="utf-8-sig", newline="") as file:
        return {row["name"]: float(row["total"]) for row in csv.DictReader(file)}


def _handed_in(lab: Lab, name: str) -> nbformat.NotebookNode:
    book = student_version(read_lab(lab))
    for cell in book.cells:
        if (question := grade_id_of(cell)) in ANSWERS and (name, question) != ("Ada Lovelace", "q2"):
            cell.source = ANSWERS[question]
    return book


def _commands(course: Path) -> Path:
    """A folder with `course` and `dask` of this Python, and a `pip` that looks whether the extra can be installed."""
    folder = course.parent / "bin"
    folder.mkdir()
    python = f'"{sys.executable}"'
    check = "import sys, tomllib; e = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']"
    check += "; assert sys.argv[-1].split('[')[1].rstrip(']') in e, sys.argv; open('constraints.txt').close()"
    for name, arguments in {"course": "-m course_tools", "dask": "-m dask", "pip": f'-c "{check}"'}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {python} {arguments} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def _run(script: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run a block; what it leaves in the background ends with it."""
    log = folder.parent / "log"
    with log.open("w") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = shell.wait(300)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
    return code, log.read_text("utf-8", "replace")[-6000:]
