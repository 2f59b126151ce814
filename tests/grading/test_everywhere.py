"""The tests of the grader do the same on every machine, whether bubblewrap works there or is not there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has bubblewrap")
ROOT = Path(__file__).parents[2]
CONFTEST = "from tests.grading.conftest import plain_machine, same_everywhere, stand_in\n"
TESTS = """\
import subprocess, sys
import pytest
from course_tools.grading.sandbox import processes

LOOK = "from course_tools.grading.sandbox import processes as p; print(p.{}())"

def python(name):
    return subprocess.run([sys.executable, "-c", LOOK.format(name)], capture_output=True, text=True).stdout.strip()

@pytest.fixture(scope="module")
def early():
    return python("best_isolation")

def test_grades_plainly(early):
    assert {early, python("best_isolation"), processes.best_isolation()} == {"none"}

def test_looks():
    assert not processes.bubblewrap_works()

def test_looks_from_elsewhere():
    assert python("bubblewrap_works") == "False"

@pytest.mark.sandbox
def test_is_sandboxed():
    assert {python("best_isolation"), processes.best_isolation()} == {"bubblewrap"}
"""


def outcomes(folder: Path, *, installed: bool, only: str = "") -> dict[str, list[str]]:
    """What becomes of `TESTS` on a machine that has bubblewrap, or not: tests by outcome."""
    programs = folder / "programs"
    programs.mkdir()
    if installed:
        (programs / "bwrap").write_text("#!/bin/sh\nexit 0\n")
        (programs / "bwrap").chmod(0o755)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_looks.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-rA", "--tb=no", "-p", "no:nbval", "-p", "no:cacheprovider"]
    command += [f"--config-file={ROOT / 'pyproject.toml'}", f"--rootdir={folder}", f"--basetemp={folder / 'temporary'}"]
    environment = {**os.environ, "PATH": str(programs), "PYTHONPATH": str(ROOT)}
    environment.pop("COURSE_GRADING_PLAIN")
    ran = subprocess.run(
        [*command, "-m", only, str(folder)], cwd=folder, env=environment, capture_output=True, text=True
    )
    found: dict[str, list[str]] = {}
    for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR) test_looks\.py::test_(\w+)", ran.stdout, re.MULTILINE):
        found.setdefault(outcome, []).append(name)
    assert found, ran.stdout + ran.stderr
    return found


@pytest.mark.parametrize("installed", [True, False])
def test_no_test_of_the_grader_looks_at_what_is_installed(tmp_path: Path, installed: bool) -> None:
    """One that does fails afterwards, also where what it saw made no difference."""
    found = outcomes(tmp_path, installed=installed, only="not sandbox")
    looking = ["looks", "looks_from_elsewhere"]
    assert found == {"PASSED": ["grades_plainly", *looking], "ERROR": looking}


@pytest.mark.parametrize(("installed", "outcome"), [(True, "PASSED"), (False, "ERROR")])
def test_those_of_the_sandbox_have_it_or_fail(tmp_path: Path, installed: bool, outcome: str) -> None:
    assert outcomes(tmp_path, installed=installed, only="sandbox") == {outcome: ["is_sandboxed"]}
