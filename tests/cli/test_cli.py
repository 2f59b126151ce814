"""The `course` command as one meets it in a terminal."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_tools import opening
from course_tools.cli import app
from course_tools.lessons import course_root, find_lessons
from tests.cli.conftest import Course, write_notebook

READS = ("course_tools/**/*.py",)
COMMANDS = ("open", "run", "build", "release", "grade", "feedback", "site", "doctor")


def test_without_arguments_it_explains_itself(course: Course) -> None:
    text = course().stdout
    assert all(re.search(rf"^\W*{command}\s+\w+", text, re.MULTILINE) for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], prog_name="course")
    assert result.exit_code == 0 and len(result.output) > 200
    assert command == "doctor" or f": course {command} " in result.output, "an example, with its arguments"


REFUSED = {
    **{f"{command} 77": ("there is no lesson '77'", "00_good\n  01_next") for command in ("run", "build", "open")},
    "run lab08": ("lab08 is a lab", "`course open lab08`"),
    "open 2": ("course build 02",),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_answered_with_what_can(monkeypatch: pytest.MonkeyPatch, root: Path, words: str) -> None:
    (root / "lessons" / "src").mkdir()
    (root / "lessons" / "src" / "02_new.py").touch()
    monkeypatch.chdir(root)
    result = CliRunner().invoke(app, words.split(), env={"COLUMNS": "160"})
    assert result.exit_code == 2 and all(answer in result.output for answer in REFUSED[words]), result.output


def test_lessons_are_found_by_number_name_beginning_or_file(root: Path) -> None:
    for wanted in ("1", "01", "01_next", "01_ne", "lessons/01_next.ipynb", "lessons/src/01_next.py"):
        assert [lesson.name for lesson in find_lessons(root, [wanted])] == ["01_next"]
    assert [lesson.name for lesson in find_lessons(root)] == ["00_good", "01_next"]
    write_notebook(root, "01_other", [])
    with pytest.raises(ValueError, match="could be any of 2 lessons"):
        find_lessons(root, ["01"])


def test_the_course_is_found_from_any_folder_in_it_and_from_outside(root: Path, tmp_path: Path) -> None:
    assert course_root(root / "lessons") == root.resolve()
    assert course_root(Path("/")) == Path(__file__).parents[2]


@pytest.mark.parametrize(("module", "words"), [("jupyterlab", ["open", "00"]), ("nbclient", ["run", "00"])])
def test_without_jupyter_a_command_says_what_to_install(
    tmp_path: Path, root: Path, module: str, words: list[str]
) -> None:
    (tmp_path / f"{module}.py").write_text(f'raise ModuleNotFoundError("No module named {module!r}", name={module!r})')
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv[1:] = {words}\n"
    code += "from course_tools.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert result.returncode == 1
    assert result.stderr.strip() == f"this command needs {module}: pip install 'bigger-than-one-gpu[jupyter]'"


def test_a_text_browser_or_none_is_no_browser(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr(opening.sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    (lesson,) = find_lessons(root, ["00"])
    assert "--no-browser" in opening.jupyterlab_arguments(lesson, browser=True)
    monkeypatch.setattr(opening, "browser_opens", lambda: True)
    assert "--no-browser" not in opening.jupyterlab_arguments(lesson, browser=True)
    assert "--no-browser" in opening.jupyterlab_arguments(lesson, browser=False)


@pytest.mark.parametrize(
    ("command", "slow"),
    [
        ("course_tools.cli", {"torch", "numpy", "nbformat", "nbclient", "nbgrader"}),  # before it says what it can do
        ("course_tools, nbformat", {"lark"}),  # which builds a grammar of web addresses
    ],
)
def test_no_command_loads_what_it_does_not_need(command: str, slow: set[str]) -> None:
    loaded = f"import sys, {command}; print(sorted({slow} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True).strip() == "[]"


@pytest.mark.notebook
def test_open_serves_the_lesson_and_prints_an_address_that_works(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "course_tools", "open", "1", "--no-browser"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=root, stdout=output, stderr=output)
    try:
        address = None
        for _ in range(1200):
            if address := re.search(r"http://127\.0\.0\.1\S+", log.read_text()):
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        assert address and "/lab/tree/lessons/01_next.ipynb?token=" in address[0], log.read_text()
        base, token = re.split(r"/lab/tree/.*token=", address[0])
        contents = f"{base}/api/contents/lessons/01_next.ipynb?token={token}"
        with urllib.request.urlopen(contents, timeout=60) as answer:
            assert b"print('next')" in answer.read()
    finally:
        process.terminate()
        assert process.wait(60) is not None
