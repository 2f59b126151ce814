"""A tiny lab of three questions, and a way to hand in answers to it."""

from __future__ import annotations

import contextlib
import copy
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat import NotebookNode

from course_tools.author.lab_source import grade_id_of, read_lab, student_version
from course_tools.grading.grade import grade_one
from course_tools.grading.intake.submissions import Submission
from course_tools.grading.report.results import Result
from course_tools.grading.sandbox import processes as sandbox
from course_tools.grading.sandbox.limits import MIB, Limits
from course_tools.labs import Lab

READS = ("tests/grading/tiny/**/*", "course_tools/**/*", "solutions/src/*.py", "INSTRUCTORS.md", "README.md")
TINY = Lab(Path(__file__).with_name("tiny"), "lab90_tiny")
MOVING_AVERAGE = """\
def moving_average(numbers, width):
    return [sum(numbers[i : i + width]) / width for i in range(len(numbers) - width + 1)]
"""
MEAN_OF_RANKS = """\
def mean_of_ranks(value):
    dist.all_reduce(value)
    return value / dist.get_world_size()
"""
HALF = "def half(number):\n    return number / 2\n"
RIGHT = {"q1": MOVING_AVERAGE, "q2": MEAN_OF_RANKS, "q3": HALF}
WAYS = [
    pytest.param(sandbox.BUBBLEWRAP, marks=pytest.mark.sandbox),
    pytest.param(sandbox.NONE, marks=[pytest.mark.nightly] if sandbox.bubblewrap_works() else []),
]
"""What both isolations must do: tested in the stronger one that this machine has, nightly in the other as well."""
QUICK = Limits(wall_s=300, cell_s=60, memory_bytes=1024 * MIB, processes=24)


@pytest.fixture(scope="module", autouse=True)
def plain_machine() -> Iterator[None]:
    """Submissions run plainly, from the processes of fixtures as well, also where bubblewrap works."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(sandbox.PLAIN, "1")
        yield


@pytest.fixture(autouse=True)
def sandboxed(request: pytest.FixtureRequest, plain_machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give bubblewrap to tests marked `sandbox`, which need it: `-m sandbox` fails without it."""
    if request.node.get_closest_marker("sandbox"):
        monkeypatch.delenv(sandbox.PLAIN)
        if sandbox.best_isolation() != sandbox.BUBBLEWRAP:
            asked_for = str(request.config.getoption("markexpr")).startswith("sandbox")
            (pytest.fail if asked_for else pytest.skip)("bubblewrap does not work here")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """The way in which submissions run, in child processes as well."""
    return request.param


@pytest.fixture(scope="session")
def full_key() -> NotebookNode:
    """The whole lab, with the question on ranks."""
    return read_lab(TINY)


@pytest.fixture(scope="session")
def key(full_key: NotebookNode) -> NotebookNode:
    """The lab without ranks, which take a second to start: most tests of hostile answers use this one."""
    quick = copy.deepcopy(full_key)
    quick.cells = [cell for cell in quick.cells if not grade_id_of(cell).startswith("q2")]
    return quick


def notebook(key: NotebookNode, **answers: str) -> NotebookNode:
    """The students' notebook with right answers, or those given here."""
    result = student_version(key)
    for cell in result.cells:
        if (name := grade_id_of(cell)) in RIGHT:
            cell.source = answers.get(name, RIGHT[name])
    return result


def cell_of(book: NotebookNode, grade_id: str) -> NotebookNode:
    """The cell with this grade_id."""
    return next(cell for cell in book.cells if grade_id_of(cell) == grade_id)


def submission(content: NotebookNode | bytes, student: str = "ada") -> Submission:
    """The submission of a student."""
    data = content if isinstance(content, bytes) else nbformat.writes(content).encode()
    return Submission(student, student.title(), f"{student}/lab90_tiny.ipynb", data)


Grade = Callable[..., Result]


@pytest.fixture
def grade(key: NotebookNode) -> Grade:
    """Grade a notebook, or right answers except for those given, with small limits."""

    def run(content: NotebookNode | bytes | None = None, limits: Limits = QUICK, **answers: str) -> Result:
        return grade_one(nbformat.writes(key), submission(content or notebook(key, **answers)), limits)

    return run


def points(result: Result) -> dict[str, float]:
    """Points by question."""
    return {name: sum(check.points for check in result.of(name)) for name in result.questions}


def outcomes(result: Result, question: str) -> list[str]:
    """Outcomes of the checks of one question."""
    return [check.outcome for check in result.of(question)]


def kernel_folders(processes: list[psutil.Process]) -> set[str]:
    """The folders of those processes that are kernels."""
    found: set[str] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found.update(re.findall(r"/tmp/course-[0-9a-f]{8}", " ".join([*process.cmdline(), process.cwd()])))
    return found


def end(processes: list[psutil.Process], folders: Collection[str] = ()) -> None:
    """End these processes and all their descendants; remove the given folders and those of kernels among them."""
    family = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            family += process.children(recursive=True)
    folders = {*folders, *kernel_folders(family)}
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(family, 10)  # a kernel would make its folder again
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
