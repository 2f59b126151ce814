"""`course release`: a folder and a zip for students, or nothing at all."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from course_tools.author.release import find_leaks, release_course, students_files
from course_tools.labs import Lab, all_labs

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
    assert files == {
        "README.md",
        "start.py",
        "pyproject.toml",
        "lessons/00_good.ipynb",
        "course_lib/step.py",
        "course_tools/cli.py",
        "labs/lab90_means/lab90_means.ipynb",
    }
    page = "# Read [me](start.py), [00](lessons/00_good.ipynb), you, [us](https://a.b/c)\n"
    assert (folder / "README.md").read_text("utf-8") == page, "a link to what students do not get"
    with zipfile.ZipFile(tmp_path / "out" / "fall.zip") as archive:
        assert {name.removeprefix("fall/") for name in archive.namelist()} == files
    first = (tmp_path / "out" / "fall.zip").read_bytes()
    release(course, tmp_path / "out" / "fall", force=True)
    assert (tmp_path / "out" / "fall.zip").read_bytes() == first


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("labs/lab90_means/notes.md", HIDDEN, "fewer numbers than"),
        ("labs/lab90_means/extra.ipynb", '{"cells": [{"source": ["### BEGIN HIDDEN TESTS"]}]}', "BEGIN HIDDEN"),
        ("course_lib/helper.py", "if x:\n" + SOLUTION, "course_lib/helper.py"),
        ("lessons/01_x.ipynb", '{"cells": [{"source": ["### BEGIN SOLUTION"]}]}', "BEGIN SOLUTION"),
    ],
)
def test_anything_hidden_stops_the_release(course: Lab, tmp_path: Path, path: str, text: str, complaint: str) -> None:
    (course.root / path).write_text(text, "utf-8")
    with pytest.raises(ValueError, match=complaint):
        release(course, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.zip").exists()


def test_a_single_line_that_the_library_shares_is_no_leak(course: Lab, tmp_path: Path) -> None:
    (course.root / "course_lib" / "helper.py").write_text("dist.all_reduce(value)\n", "utf-8")
    release(course, tmp_path / "out")


def test_a_single_line_of_another_lab_is_no_leak_and_a_copy_is(course: Lab) -> None:
    def leaks(folder: str, text: str) -> list[str]:
        return list(find_leaks({Path("labs", folder, "notes.md"): text.encode()}, [course]))

    line = "dist.all_reduce(value)\n"
    assert leaks("lab91_other", line) == [] and len(leaks("lab90_means", line)) == 1
    (copied,) = leaks("lab91_other", SOLUTION)
    assert copied.endswith("… (of lab90_means)")


def test_a_lab_that_was_not_built_is_not_handed_out(course: Lab, tmp_path: Path) -> None:
    course.source.write_text(course.source.read_text("utf-8").replace("windows of two", "two"), "utf-8")
    with pytest.raises(ValueError, match="lab90_means is not ready.*run `course build`"):
        release(course, tmp_path / "out")


def test_a_lesson_that_was_not_built_is_not_handed_out(course: Lab, tmp_path: Path) -> None:
    (course.root / "lessons" / "src").mkdir()
    (course.root / "lessons" / "src" / "00_good.py").write_text("# %%\nx = 1\n", "utf-8")
    with pytest.raises(ValueError, match="00_good is not ready.*does not match its source"):
        release(course, tmp_path / "out")


def test_nothing_is_overwritten_unasked(course: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work", "utf-8")
    for force in (False, True):
        with pytest.raises(ValueError, match="exists already|no earlier release"):
            release(course, precious, force=force)
    with pytest.raises(ValueError, match="holds the course itself"):
        release(course, course.root, force=True)
    monkeypatch.chdir(course.root)
    with pytest.raises(ValueError, match="holds the course itself"):
        release(course, Path("."))
    for own in (".git", "solutions"):
        (tmp_path / own / "course_lib").mkdir(parents=True)
        (tmp_path / own / own).mkdir()
        with pytest.raises(ValueError, match="would be deleted"):
            release(course, tmp_path / own, force=True)
    assert (precious / "thesis.txt").read_text("utf-8") == "years of work"


def test_links_are_not_followed(course: Lab, tmp_path: Path) -> None:
    (course.root / "lessons" / "link.ipynb").symlink_to(course.source)
    release(course, tmp_path / "out")
    assert not (tmp_path / "out" / "lessons" / "link.ipynb").exists()
