"""`course new`: what it writes passes everything that a lesson must pass, and it overwrites nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from course_tools import TAUGHT
from course_tools.author.scaffold import LONGEST, PACKAGES, Plan, new_lesson

ROOT = Path(__file__).parents[2]
READS = ("course_*/**/*", "tests/**/*.py", "README.md")
pytestmark = pytest.mark.timeout(400)  # a whole small course is built, run and read by pyright
NAME, QUESTION = "19_tensor_parallelism", "Who holds which part of a layer?"
README = """\
| | Lesson | The question | The lab |
|---|---|---|---|
| [00](lessons/00_x.ipynb) | X | How? | |
| [21](lessons/21_y.ipynb) | Y | Why? | |

The end.
"""


def course(folder: Path) -> Path:
    """A course without lessons: its packages, the tests, and what they read."""
    # bytecode comes along, since Python knows it by its source's age; what somebody writes at this moment does not
    skipped = shutil.ignore_patterns("lab[0-9][0-9]", "*.pyc.*")
    for name in (*TAUGHT, "course_tools", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for name in ("README.md", "pyproject.toml", "constraints.txt", "start.py"):
        shutil.copy(ROOT / name, folder)
    (folder / "lessons").mkdir()
    return folder


def run(root: Path, *command: str) -> None:
    """Run a module in a course; it must succeed."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    result = subprocess.run([sys.executable, "-m", *command], cwd=root, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A course with the new lesson, built, and what was written of it."""
    root = course(tmp_path_factory.mktemp("course"))
    written = new_lesson(Plan(root, NAME, "parallel", QUESTION))
    run(root, "course_tools", "build", "19", "lab19")
    return root, written


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A course that has nothing but a README."""
    (tmp_path / "README.md").write_text(README, "utf-8")
    return tmp_path


def python_files(written: list[Path]) -> list[str]:
    return [path.as_posix() for path in written if path.suffix == ".py"]


@pytest.mark.notebook
@pytest.mark.nightly
def test_what_is_written_is_built_passes_its_tests_and_its_labs_faults_lose_their_points(
    new: tuple[Path, list[Path]],
) -> None:
    root, written = new
    own = [path for path in python_files(written) if path.startswith("tests/") and "browser" not in path]
    assert len(own) == 3
    of_all = ["tests/labs/test_labs.py", "tests/test_reading.py"]  # this course has one lesson and one lab
    run(root, "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:nbval", *of_all, *own)
    run(root, "course_tools", "build", "--check")


@pytest.mark.nightly
def test_the_types_are_right(new: tuple[Path, list[Path]]) -> None:
    root, written = new
    typed = [path for path in python_files(written) if path.startswith((*TAUGHT, "tests"))]
    run(root, "pyright", "--pythonpath", sys.executable, *typed)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", [NAME, "20_x", "20_" + "z" * LONGEST])
def test_lint_and_format_find_nothing_whatever_the_name(bare: Path, name: str, package: str) -> None:
    written = python_files(new_lesson(Plan(bare, name, package, QUESTION)))
    shutil.copy(ROOT / "pyproject.toml", bare)
    ours = f"lint.isort.known-first-party = {[*TAUGHT, 'tests']}"  # ruff looks for them on disk, and they are not here
    run(bare, "ruff", "check", "--no-cache", "--config", ours, *written)
    run(bare, "ruff", "format", "--no-cache", "--force-exclude", "--check", *written)


def test_every_file_has_a_place_in_the_budget(bare: Path) -> None:
    written = new_lesson(Plan(bare, NAME, "parallel", QUESTION))
    lines = {path: len((bare / path).read_text("utf-8").splitlines()) for path in written}
    assert len(written) == 16 and written[-1] == Path("README.md")
    for package, most in (("course_lib", 450), ("course_pages", 400)):
        assert sum(n for path, n in lines.items() if path.parts[0] == package) < most / 3
    assert sum(n for path, n in lines.items() if path.suffix == ".js") < 150 / 3


def test_the_row_stands_where_its_number_belongs(bare: Path) -> None:
    new_lesson(Plan(bare, NAME, "parallel", QUESTION))
    title = "Tensor parallelism"
    row = f"| [19](lessons/{NAME}.ipynb) | {title} | {QUESTION} | [{title}](labs/lab{NAME}/lab{NAME}.ipynb) |\n"
    assert (bare / "README.md").read_text("utf-8") == README.replace("| [21]", row + "| [21]")


@pytest.mark.parametrize(
    ("file", "words"),
    [("course_pages/lesson19/pictures.py", "course_pages/lesson19/pictures.py"), ("README.md", "no table of lessons")],
)
def test_what_is_there_is_not_overwritten_and_then_nothing_is_written(bare: Path, file: str, words: str) -> None:
    (bare / file).parent.mkdir(parents=True, exist_ok=True)
    (bare / file).write_text("mine", "utf-8")
    with pytest.raises(ValueError, match=words):
        new_lesson(Plan(bare, NAME, "parallel", QUESTION))
    texts = {path.relative_to(bare).as_posix(): path.read_text("utf-8") for path in bare.rglob("*.*")}
    assert texts == {"README.md": README, file: "mine"}


def test_a_number_belongs_to_one_lesson(bare: Path) -> None:
    new_lesson(Plan(bare, NAME, "parallel", QUESTION))
    with pytest.raises(ValueError, match=f"number 19 belongs to {NAME}"):
        Plan(bare, "19_pipelines", "parallel", QUESTION)


WRONG = {
    "no number": ("tensor_parallelism", "parallel", QUESTION, "two digits"),
    "a capital": ("19_Tensor", "parallel", QUESTION, "two digits"),
    "a folder": ("19_a/b", "parallel", QUESTION, "two digits"),
    "no name for a module": ("19_try", "parallel", QUESTION, "a word of Python's"),
    "too long": ("19_" + "z" * (LONGEST + 1), "parallel", QUESTION, "at most 30"),
    "no such package": (NAME, "figures", QUESTION, "choose one of numerics"),
    "a question of two lines": (NAME, "parallel", "Who?\nWhat?", "one line"),
    "a question that ends a cell of the table": (NAME, "parallel", "a | b?", "one line"),
    "no question": (NAME, "parallel", " ", "one line"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_cannot_be_is_refused(tmp_path: Path, fault: str) -> None:
    name, package, question, message = WRONG[fault]
    with pytest.raises(ValueError, match=message):
        Plan(tmp_path, name, package, question)
