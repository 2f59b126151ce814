"""`course release`: a folder and a zip for students, or nothing at all."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from course_tools.author.release import find_leaks, release_course, students_files
from course_tools.labs import Lab, all_labs

from .conftest import WITH_A_VALUE

READS = ("*.md", "docs/**/*", "course_*/**/*", "lessons/**/*", "labs/**/*", "solutions/src/*.py")
HIDDEN = 'check.equal(check.call(moving_average, [1], 2), [], "fewer numbers than the window is wide")'
SOLUTION = """\
starts = range(len(numbers) - width + 1)
return [sum(numbers[start : start + width]) / width for start in starts]
dist.all_reduce(value)
"""


@pytest.fixture
def course(built: Lab) -> Lab:
    """A whole small course, to spoil."""
    for path, text in {
        "README.md": "# Read [me](start.py), [00](lessons/00_good.ipynb), [you](TEACHERS.md), [us](https://a.b/c)\n",
        "lessons/00_good.ipynb": '{"cells": []}',
        "lessons/.ipynb_checkpoints/00_good.ipynb": "{}",
        "course_lib/step.py": "x = 1\n",
        "course_tools/cli.py": "x = 2\n",
        "course_tools/author/code.py": "x = 3\n",
        "course_tools/grading/report/words.py": "x = 4\n",
        "course_lib/__pycache__/step.pyc": "x",
        "tests/test_x.py": "",
    }.items():
        (built.root / path).parent.mkdir(parents=True, exist_ok=True)
        (built.root / path).write_text(text, "utf-8")
    return built


def release(lab: Lab, destination: Path, **options: Any) -> None:
    release_course(lab.root, destination, [lab], Console(quiet=True), **options)


def test_nothing_in_this_course_gives_an_answer_of_its_labs_away() -> None:
    """A lesson that shows what a lab asks for, to begin with."""
    root = Path(__file__).parents[2]
    files = {path: (root / path).read_bytes() for path in students_files(root, all_labs(root))}
    assert list(find_leaks(files, all_labs(root))) == []


def test_students_get_what_they_need_and_nothing_else(course: Lab, tmp_path: Path) -> None:
    release(course, tmp_path / "out" / "fall")
    folder = tmp_path / "out" / "fall"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    own = {"lessons/00_good.ipynb", "labs/lab90_means/lab90_means.ipynb", "course_lib/step.py", "course_tools/cli.py"}
    assert files == {"README.md", "start.py", "pyproject.toml", *own}
    page = "# Read [me](start.py), [00](lessons/00_good.ipynb), you, [us](https://a.b/c)\n"
    assert (folder / "README.md").read_text("utf-8") == page, "a link to what students do not get"
    with zipfile.ZipFile(tmp_path / "out" / "fall.zip") as archive:
        assert {name.removeprefix("fall/") for name in archive.namelist()} == files
    first = (tmp_path / "out" / "fall.zip").read_bytes()
    release(course, tmp_path / "out" / "fall", force=True)
    assert (tmp_path / "out" / "fall.zip").read_bytes() == first


REFUSED = {
    "fewer numbers than": ("labs/lab90_means/notes.md", HIDDEN),
    "BEGIN HIDDEN": ("labs/lab90_means/extra.ipynb", '{"cells": [{"source": ["### BEGIN HIDDEN TESTS"]}]}'),
    "course_lib/helper.py": ("course_lib/helper.py", "if x:\n" + SOLUTION),
    "BEGIN SOLUTION": ("lessons/01_x.ipynb", '{"cells": [{"source": ["### BEGIN SOLUTION"]}]}'),
    "lab90_means is not ready.*run `course build`": ("solutions/src/lab90_means.py", WITH_A_VALUE.replace("two", "2")),
    "00_good is not ready.*does not match its source": ("lessons/src/00_good.py", "# %%\nx = 1\n"),
}


@pytest.mark.parametrize("complaint", REFUSED)
def test_what_is_hidden_or_was_not_built_stops_the_release(course: Lab, tmp_path: Path, complaint: str) -> None:
    path, text = REFUSED[complaint]
    (course.root / path).parent.mkdir(exist_ok=True)
    (course.root / path).write_text(text, "utf-8")
    with pytest.raises(ValueError, match=complaint):
        release(course, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.zip").exists()


def test_a_single_line_of_the_library_or_of_another_lab_is_no_leak_and_a_copy_is(course: Lab) -> None:
    def leaks(file: str, text: str) -> list[str]:
        return list(find_leaks({Path(file): text.encode()}, [course]))

    alone = next(line for line in WITH_A_VALUE.splitlines() if "ranks 0, 1 and 2" in line)
    for line in ("dist.all_reduce(value)", alone):  # of several lines, and the only one of a hidden check
        assert leaks("course_lib/helper.py", line) == leaks("labs/lab91_other/notes.md", line) == []
        assert len(leaks("labs/lab90_means/notes.md", line)) == 1
    (copied,) = leaks("labs/lab91_other/notes.md", SOLUTION)
    assert copied.endswith("… (of lab90_means)")


def test_nothing_is_overwritten_unasked(course: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("precious", ".git/.git", ".git/course_lib", "solutions/solutions", "solutions/course_lib"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "precious" / "thesis.txt").write_text("years of work", "utf-8")
    monkeypatch.chdir(course.root)
    for destination, force, words in (
        (tmp_path / "precious", False, "exists already"),
        (tmp_path / "precious", True, "no earlier release"),
        (course.root, True, "holds the course itself"),
        (Path("."), False, "holds the course itself"),
        (tmp_path / ".git", True, "would be deleted"),
        (tmp_path / "solutions", True, "would be deleted"),
    ):
        with pytest.raises(ValueError, match=words):
            release(course, destination, force=force)
    assert (tmp_path / "precious" / "thesis.txt").read_text("utf-8") == "years of work"


def test_links_are_not_followed(course: Lab, tmp_path: Path) -> None:
    (course.root / "lessons" / "link.ipynb").symlink_to(course.source)
    release(course, tmp_path / "out")
    assert not (tmp_path / "out" / "lessons" / "link.ipynb").exists()
