"""A course in a temporary folder with one tiny lesson, built once."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from course_tools.author.builder import build
from course_tools.lessons import Lesson

ROOT = Path(__file__).parents[2]
SOURCE = """\
# %% [markdown]
# # 00 · Tiny

# %%
import subprocess
import sys
import time

child = subprocess.run([sys.executable, "-c", "print('a child speaks')"])
time.sleep(0.5)  # a kernel forwards what children print in its own time, even after the cell

# %%
from IPython.display import display
from ipywidgets import HBox, IntSlider

display(HBox([IntSlider(3), IntSlider(4)]))

# %% tags=["varies"]
print(time.perf_counter(), object())

# %% tags=["raises-exception"]
import torch

torch.ones(2, 3).view(5)

# %%
from course_kit.compare import compare

compare(predicted=4, measured=4.1, tolerance=0.1, name="four")

# %%
get_ipython().execution_count  # error reports name cells by it
"""


def make_course(folder: Path, source: str = SOURCE) -> Lesson:
    """A course with one lesson that has not been built."""
    (folder / "lessons" / "src").mkdir(parents=True)
    (folder / "lessons" / "src" / "00_tiny.py").write_text(source, "utf-8")
    (folder / "start.py").touch()
    shutil.copy(ROOT / "pyproject.toml", folder)
    return Lesson(folder, "00_tiny")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    """The tiny lesson, built. Shared: tests that change it take `lesson`."""
    lesson = make_course(tmp_path_factory.mktemp("course"))
    assert build(lesson)
    return lesson


@pytest.fixture
def lesson(built: Lesson, tmp_path: Path) -> Lesson:
    """A copy of the built lesson for one test."""
    shutil.copytree(built.root, tmp_path / "course")
    return Lesson(tmp_path / "course", built.name)


@pytest.fixture
def notebook(built: Lesson) -> NotebookNode:
    """The built notebook, fresh from disk."""
    return nbformat.read(built.notebook, as_version=4)
