"""The frame of `start.py test`: the stages that run, the reasons of those that do not, and the time of all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import __main__ as command
from tests import clock
from tests.conftest import pytest_collection_modifyitems
from tests.stages import Stage

ONE_TEST = "def test_lab03_counts():\n    pass\n\n\ndef test_other():\n    assert {}\n"
Summary = Callable[..., tuple[int, str]]


def stage(name: str, code: str = "pass", why: str = "") -> Stage:
    """A stage that runs `code`, on a machine that lacks something if `why` is not empty."""
    return Stage(name, "a stand-in", [["timeit", "-n", "1", "-r", "1", code]], lambda: why, timed=False)


@pytest.fixture
def summary(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Summary:
    """`summary(stages, ci="", words=())`: the exit code of `python -m tests WORDS` and all that it printed."""

    def run(*stages: Stage, ci: str = "", words: tuple[str, ...] = ()) -> tuple[int, str]:
        monkeypatch.setattr(command, "STAGES", stages)
        monkeypatch.setattr(command, "NAMES", [each.name for each in stages])
        monkeypatch.setattr(sys, "argv", ["tests", *words])
        monkeypatch.setenv("CI", ci)
        code = command.main()
        return code, capfd.readouterr().out

    return run


def test_a_failure_stops_nothing_and_is_the_exit_code(summary: Summary) -> None:
    code, said = summary(stage("one", "1 / 0"), stage("two", "print('2 passed in 1 s')"))
    assert code == 1 and "one        FAILED" in said and "two        passed" in said and "2 passed" in said
    assert "NOT all passed" in said
    code, said = summary(stage("one", "1 / 0"), stage("two"), words=("two",))
    assert code == 0 and "=== one" not in said and "All passed in" in said


def test_what_a_stage_compiles_is_kept_whatever_the_user_has_set(
    summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert summary(stage("one", "import sys; assert not sys.dont_write_bytecode"))[0] == 0


@pytest.mark.parametrize(("kind", "heard"), [("background", False), ("terminal", True)])
def test_a_child_hears_ctrl_c_as_the_test_wants_however_the_tests_were_started(
    background: None, request: pytest.FixtureRequest, kind: str, heard: bool
) -> None:
    request.getfixturevalue(kind)
    look = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"]
    assert subprocess.run(look, capture_output=True, text=True).stdout.split() == [str(heard)]


@pytest.mark.parametrize(("worker", "order"), [(True, "bbac"), (False, "abcb")])
def test_where_two_work_the_files_with_slow_tests_come_first(worker: bool, order: str) -> None:
    marks = [("a", ""), ("b", "slow"), ("c", ""), ("b", "")]
    items: list[Any] = [
        SimpleNamespace(path=path, get_closest_marker=lambda name, own=own: name == own) for path, own in marks
    ]
    config: Any = SimpleNamespace(**{"workerinput": {}} if worker else {})
    pytest_collection_modifyitems(config, items)
    assert "".join(item.path for item in items) == order


def test_what_did_not_run_is_said_with_the_command_and_the_rest_decides(summary: Summary) -> None:
    missing = stage("browser", "open('never')", why="there is no Chromium: sudo apt-get install chromium")
    code, said = summary(stage("unit"), missing)
    last = said.partition("=== summary")[2]
    assert code == 0 and "browser    did not run" in last and "sudo apt-get install chromium" in last
    assert "All that ran passed" in last and "All passed" not in last
    assert summary(stage("unit", "1 / 0"), missing)[0] == 1
    assert summary(missing)[0] == 1, "nothing was checked at all"


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("1", 1), ("false", 0), ("", 0)])
def test_in_ci_a_stage_that_did_not_run_is_a_failure(summary: Summary, ci: str, code: int) -> None:
    got, said = summary(stage("unit"), stage("sandbox", why="bubblewrap is not installed"), ci=ci)
    assert got == code and ("In CI, a stage that did not run is a failure" in said) == bool(code)


def test_an_unknown_stage_is_refused_with_the_names_of_those_there_are(
    summary: Summary, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        summary(stage("one"), words=("tow",))
    assert "there is no stage 'tow'; the stages are one, and quick" in capfd.readouterr().err


def test_where_the_time_went_is_told_by_lesson_and_lab(summary: Summary, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ONE_TEST)
    tests = Stage(
        "labs", "a stand-in", [["pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)]]
    )
    code, said = summary(tests)
    assert code == 1 and "1 failed, 1 passed" in said.partition("=== summary")[2]
    rows = said.partition("=== where time went")[2].partition("=== summary")[0].splitlines()
    assert [row.split()[0] for row in rows[2:] if row] == ["lab03", "the"] and "labs" in rows[1]


@pytest.mark.parametrize(
    ("test", "owner"),
    [
        ("tests.labs.test_labs test_a_known_wrong_answer_loses_its_points[lab03-no_ticket]", "lab03"),
        ("lessons/03_activation_checkpointing.ipynb Cell 4", "lesson 03"),
        ("solutions.lab07_data_parallelism.lab07_data_parallelism Cell 1", "lab07"),
        ("tests.browser.test_lessons test_a_lesson_runs_from_top_to_bottom[06_collectives]", "lesson 06"),
        ("tests.numerics.test_formats test_bits[fp16]", "numerics.test_formats"),
        ("tests.model.test_zoo test_8_billion[llama_3_08_b]", "model.test_zoo"),
        ("tests.notebooks ipynb::lessons/12_3d_parallelism.ipynb::Cell 3", "lesson 12"),
        ("somewhere else", clock.REST),
    ],
)
def test_whose_time_it_is(test: str, owner: str) -> None:
    assert clock.whose(test) == owner


def test_the_table_adds_up() -> None:
    spent = {"lab01": {"labs": 3.0, "notebooks": 4.5}, "lesson 01": {"notebooks": 10.0}}
    head, lab, lesson = clock.table(spent)
    assert head.split() == ["labs", "notebooks", "together"]
    assert lab.split() == ["lab01", "3.0", "s", "4.5", "s", "7.5", "s"]
    assert len({len(line) for line in (head, lab, lesson)}) == 1
