"""A stored notebook is a recorded test: its cells run again where its record no longer fits, and in `test all`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_tools.author.build_all import is_fresh
from course_tools.labs import Lab, find_labs
from course_tools.lessons import Lesson, all_lessons

READS = ("lessons/*.ipynb", "lessons/src/*.py", "solutions/src/*.py", "solutions/*/*.ipynb", "tests/notebooks/*")
ROOT = Path(__file__).parents[2]
PAGES: list[Lesson | Lab] = [*all_lessons(ROOT), *find_labs(ROOT)]
ALWAYS = "06"
"""A short lesson with real ranks, which runs again by default whatever its record says."""
NOT_FOR_KERNELS = ("COURSE_", "PYTEST_", "OMP_", "MPLBACKEND")


def waits(page: Lesson | Lab) -> bool:
    """Whether a page's record says that its cells would do again what is stored."""
    return page.number != ALWAYS and is_fresh(page)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.nightly] if waits(page) else [], id=page.name) for page in PAGES],
)
def test_every_cell_does_again_what_is_stored(page: Lesson | Lab) -> None:
    path = page.solution if isinstance(page, Lab) else page.notebook
    environment = {key: value for key, value in os.environ.items() if not key.startswith(NOT_FOR_KERNELS)}
    command = [sys.executable, "-m", "tests.notebooks", "-q", str(path)]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, f"{path.name}\n{ran.stdout[-8000:]}\n{ran.stderr[-2000:]}"
