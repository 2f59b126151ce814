"""`start.py test quick`: the right tests for a change, all of them where the change is not known."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import quick
from tests.labs.affected import affected_labs
from tests.stages import STAGES, Stage

ROOT = Path(__file__).parents[1]


def words(path: str, stage: str) -> str:
    """The command lines of a stage after a change of one file."""
    (found,) = [each for each in quick.chosen(ROOT, [path]) if each.name == stage]
    return "\n".join(" ".join(command) for command in found.commands)


def test_a_module_of_the_library() -> None:
    path = "course_lib/numerics/formats.py"
    assert words(path, "lint") and words(path, "types").endswith(path)
    assert words(path, "unit").endswith(" tests/numerics/test_formats.py")
    assert words(path, "notebooks") == ""
    run = words(path, "labs")
    assert "(solution and lab01)" in run and "lab06" not in run, "lab 06 imports no formats"


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("course_pages/lesson01/explorer.js", "tests/pages/lesson01/test_explorer.py"),
        ("course_kit/ranks/_diagnosis/matching.py", "tests/ranks/test_matching.py"),
        ("course_kit/ranks/_diagnosis/report.py", "tests/ranks/test_diagnosis.py"),
        ("course_tools/grading/sandbox/processes.py", "tests/grading/test_sandbox.py"),
        ("course_tools/doctor.py", "tests/cli/test_doctor.py"),
        ("tests/test_units.py", "tests/test_units.py"),
        ("start.py", "tests/test_start.py"),
    ],
)
def test_which_tests_mirror_a_file(path: str, test: str) -> None:
    assert quick.mirrors(ROOT, [path]) == [test]


def test_a_lesson_is_checked_against_its_source_and_nothing_is_run() -> None:
    path = "lessons/src/03_activation_checkpointing.py"
    assert words(path, "notebooks") == "course_tools build --check 03_activation_checkpointing"
    assert [words(path, stage) for stage in ("types", "unit", "labs")] == ["", "", ""]


@pytest.mark.parametrize("path", ["solutions/src/lab02_memory_accounting.py", "tests/mutants/lab02/sixteen_psi.py"])
def test_a_lab_of_its_own_runs_whole(path: str) -> None:
    assert words(path, "labs").endswith(" -k lab02")


def test_of_many_labs_that_a_module_reaches_a_few_run_and_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    run = words("course_kit/checks/check.py", "labs")
    assert 1 < run.count("(solution and lab") <= quick.MOST and "(solution and lab01)" in run
    assert f"Of {len(affected_labs([Path('course_kit/checks/check.py')]))} labs" in capsys.readouterr().out


def test_which_labs_a_change_reaches() -> None:
    everything = affected_labs([Path("course_kit/checks/check.py")])
    assert len(everything) == len(list(ROOT.glob("solutions/src/lab*.py"))) and everything[0].startswith("lab01")
    assert affected_labs([Path("README.md")]) == []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository of one commit."""
    for command in (["init", "-q", "-b", "main"], ["config", "user.email", "a@b.c"], ["config", "user.name", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    commit(tmp_path, "one.py")
    return tmp_path


def commit(root: Path, name: str) -> None:
    """One more commit, with one new file."""
    (root / name).write_text("1\n")
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    subprocess.run(["git", "commit", "-q", "-m", name], cwd=root, check=True)


def test_what_changed(repository: Path) -> None:
    assert quick.changed_files(repository) is None, "a history of one commit says nothing"
    commit(repository, "two.py")
    assert quick.changed_files(repository) == ["two.py"], "nothing differs from HEAD: the last commit"
    subprocess.run(["git", "switch", "-q", "-c", "branch"], cwd=repository, check=True)
    commit(repository, "three.py")
    commit(repository, "four.py")
    assert quick.changed_files(repository) == ["four.py", "three.py"], "since the branch left main"
    (repository / "one.py").write_text("2\n")
    (repository / "new.py").touch()
    (repository / "two.py").unlink()
    assert quick.changed_files(repository) == ["new.py", "one.py"], "what differs from HEAD, what is new, what exists"


def test_without_git_and_in_ci_everything_runs(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", "/")
    assert quick.stages(tmp_path_factory.mktemp("bare")) is STAGES
    commit(repository, "two.py")
    chosen: list[Stage] = quick.stages(repository)
    assert [stage.name for stage in chosen] == ["lint"]
    monkeypatch.setenv("CI", "true")
    assert quick.stages(repository) is STAGES
