"""A course in a temporary folder with two tiny notebooks, and the command to call on it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

Course = Callable[..., subprocess.CompletedProcess[str]]

GOOD = [
    "from course_kit.compare import compare",
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


def make_course(folder: Path) -> Path:
    """A course with the lessons 00_good and 01_next."""
    (folder / "lessons").mkdir()
    (folder / "start.py").touch()
    write_notebook(folder, "00_good", GOOD)
    write_notebook(folder, "01_next", ["print('next')"])
    return folder


def call_course(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`course` with arguments in `root`, in a process of its own."""
    env = os.environ | {"COLUMNS": "160", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "course_tools", *arguments]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A course in a folder of its own."""
    return make_course(tmp_path)


@pytest.fixture
def course(root: Path) -> Course:
    """`call_course` on this course."""
    return functools.partial(call_course, root)
