"""A course in a temporary folder with two tiny notebooks, and the command to call on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

Course = Callable[..., subprocess.CompletedProcess[str]]

GOOD = [
    "from course_lib.compare import compare",
    "compare(predicted=100, measured=99, tolerance=0.05, name='a little less')",
    "compare(predicted={'x': 10, 'y': 4}, measured={'x': 10, 'y': 4})",
    "compare(predicted=1, measured=50, tolerance=None, name='only shown')",
]


def write_notebook(root: Path, name: str, cells: list[str]) -> Path:
    """A notebook that was never run, among the lessons of `root`."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    path = root / "lessons" / f"{name}.ipynb"
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A course with the lessons 00_good and 01_next."""
    (tmp_path / "lessons").mkdir()
    (tmp_path / "start.py").touch()
    write_notebook(tmp_path, "00_good", GOOD)
    write_notebook(tmp_path, "01_next", ["print('next')"])
    return tmp_path


@pytest.fixture
def course(root: Path) -> Course:
    """Call `course` with arguments in `root`, in a process of its own."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"COLUMNS": "160", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "course_tools", *arguments]
        return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    return call
