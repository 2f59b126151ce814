"""Every lesson and every lab's solution from top to bottom, where a GPU is visible and where each rank has its own.

Cells must run and their checks hold. Outputs are not compared: a GPU changes some, and their tables hold measurements
against formulas.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from course_tools.kernel import execute
from course_tools.labs import Lab, find_labs
from course_tools.lessons import Lesson, all_lessons
from tests.simulated_gpu import build
from tests.simulated_gpu.cards import T4, Machine

READS = ("lessons/*.ipynb", "lessons/src/*.py", "solutions/src/*.py", "solutions/*/*.ipynb")
ROOT = Path(__file__).parents[2]
NOT_FOR_KERNELS = ("COURSE_", "PYTEST_", "MPLBACKEND")
FAILED = "✗"
"""What a check of a lab or of a turn prints in front of what is wrong."""
RANKS = re.compile(r"\branks\.\w|capstone\.Training")
"""What a page with ranks says."""
LAST = "import torch\n\nassert torch.cuda.get_device_name() == {name!r} and torch.cuda.device_count() == {gpus}"
pytestmark = pytest.mark.simulated


def places() -> list[object]:
    """Each page on each machine that can change it; what `test all` has no time for waits for `test all gpu`.

    A page with ranks is another one where each of them has a GPU (8 are enough for all); so is each page, where one is
    visible. One that never asks for it runs so once a week.
    """
    found = []
    for page in (*all_lessons(ROOT), *find_labs(ROOT)):
        source = page.source.read_text("utf-8")
        has_ranks, asks = RANKS.search(source) is not None, "cuda" in source
        for machine, now in ((T4, asks), (T4.times(8), has_ranks)):
            if machine.gpus == 1 or has_ranks:
                marks = () if now else (pytest.mark.weekly,)
                found.append(pytest.param(page, machine, marks=marks, id=f"{page.name}-{machine.words}"))
    return found


def failures(notebook: NotebookNode) -> int:
    """How many checks say in the outputs that they failed: some are meant to."""
    return sum(str(cell.get("outputs", "")).count(FAILED) for cell in notebook.cells)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("page", "machine"), places())
def test_its_cells_run_and_its_checks_hold(
    page: Lesson | Lab, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = page.solution if isinstance(page, Lab) else page.notebook
    notebook = nbformat.read(path, as_version=4)
    meant = failures(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.cells.append(nbformat.v4.new_code_cell(LAST.format(name=machine.name, gpus=machine.gpus)))
    for name in [name for name in os.environ if name.startswith(NOT_FOR_KERNELS)]:
        monkeypatch.delenv(name)
    for name, value in machine.environment(build.built()).items():
        monkeypatch.setenv(name, value)
    execute(notebook, path.parent, reproducible=False, timeout_s=400)
    assert failures(notebook) <= meant
