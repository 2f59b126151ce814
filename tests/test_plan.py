"""The frame of `start.py test`: what runs and what waits, the verdict of every outcome, and the time of all."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import __main__ as command
from tests import clock, plan
from tests.__main__ import FAILED, MISSING, NOT_HERE, PASSED, Row
from tests.plan import BROWSER, FOREIGN, GPU, SANDBOX, WAITING, Need, Plan

ROOT = Path(__file__).parents[1]
TESTS = Row("tests", PASSED, 9.0, "7 passed in 9 s")
NO_BROWSER = Row("browser", MISSING, 0.1, "there is no Chromium: sudo apt-get install chromium")
NO_SANDBOX = Row("sandbox", NOT_HERE, 0.0, "only linux can have it")
NO_COMPILER = Row("gpu", MISSING, 0.1, "there is no compiler of C++: sudo apt-get install g++")
Verdict = Callable[..., tuple[int, str]]


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verdict:
    """`verdict(rows, ci="", waiting={})`: the exit code of a check with these rows and all that it printed."""

    def judged(*rows: Row, ci: str = "", waiting: dict[str, int] | None = None) -> tuple[int, str]:
        monkeypatch.setenv("CI", ci)
        return command.report(rows, 60.0, waiting or {}), capsys.readouterr().out

    return judged


@pytest.mark.parametrize(
    ("rows", "ci", "code", "words"),
    [
        ([TESTS], "", 0, "All passed in 60 s."),
        ([TESTS], "true", 0, "All passed in 60 s."),
        ([TESTS, Row("types", FAILED, 1.0, "3 errors")], "", 1, "NOT all passed"),
        ([Row("tests", command.STOPPED, 1.0, "interrupted")], "", 1, "NOT all passed"),
        ([TESTS, NO_BROWSER], "", 0, "All that ran passed"),
        ([TESTS, NO_BROWSER], "false", 0, "sudo apt-get install chromium"),
        ([TESTS, NO_BROWSER], "true", 1, "In CI, what should have run and did not is a failure."),
        ([TESTS, NO_BROWSER], "1", 1, "NOT all passed"),
        ([TESTS, NO_SANDBOX], "true", 0, "All passed in 60 s."),
        ([TESTS, NO_SANDBOX, NO_BROWSER], "true", 1, "sandbox  not for this system"),
        ([NO_BROWSER], "", 1, "NOT all passed"),
        ([TESTS, NO_COMPILER], "", 0, "there is no compiler of C++: sudo apt-get install g++"),
        ([TESTS, NO_COMPILER], "true", 1, "what should have run and did not is a failure"),
    ],
)
def test_the_verdict(verdict: Verdict, rows: list[Row], ci: str, code: int, words: str) -> None:
    got, said = verdict(*rows, ci=ci)
    assert got == code and words in said


def test_what_was_left_is_told_with_its_numbers(verdict: Verdict) -> None:
    said = verdict(TESTS, waiting={"default": 7, "nightly": 5, "timed": 2, "simulated": 3})[1]
    left = "5 tests that another one stands for, 2 that read a clock, 3 on simulated GPUs; 7"
    assert f"Left for `python3 start.py test all`: {left}" in said


@pytest.mark.parametrize(
    ("system", "problem", "expected"),
    [
        ("linux", "", None),
        ("linux", "bubblewrap is not installed", MISSING),
        ("darwin", "", NOT_HERE),
        ("win32", "", NOT_HERE),
    ],
)
def test_what_a_system_cannot_have_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, system: str, problem: str, expected: str | None
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    row = command._row_of(dataclasses.replace(SANDBOX, problem=lambda: problem))
    assert (row and row.verdict) == expected
    assert not BROWSER.systems, "every system can have a browser"


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_a_check_can_end_green_on_every_system(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, system: str
) -> None:
    """The whole of `python -m tests`, with two tests, as GitHub's workflow calls it."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n\ndef test_it():\n    pass\n\n\n@pytest.mark.sandbox\ndef test_in():\n    pass\n"
    )
    needs = [dataclasses.replace(need, problem=lambda: "") for need in (BROWSER, SANDBOX)]
    monkeypatch.setattr(Plan, "needs", needs)
    monkeypatch.setattr(command, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(plan, "worker_count", lambda: 1)
    monkeypatch.setattr(command, "asked_for", lambda words: Plan("all" in words, (str(tmp_path),), beside=()))
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(sys, "argv", ["tests", "all"])
    assert command.main() == 0
    said = capsys.readouterr().out.partition("=== summary")[2]
    assert ("not for this system" in said) == (system != "linux") and "All passed" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Plan()),
        (["all"], Plan(everything=True)),
        (["lint"], Plan(rooms=(), beside=("lint",))),
        (["labs", "types"], Plan(rooms=("tests/labs",), beside=("types",))),
        (["gpu"], Plan(rooms=("tests/simulated_gpu",), beside=())),
        (["all", "gpu"], Plan(everything=True, rooms=("tests/simulated_gpu",), beside=())),
        (["all", "tests/ranks"], Plan(everything=True, rooms=("tests/ranks",), beside=())),
        (["test_units.py"], Plan(rooms=("tests/test_units.py",), beside=())),
    ],
)
def test_words_make_a_plan(words: list[str], expected: Plan) -> None:
    assert plan.asked_for(words) == expected


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        ([], [BROWSER, SANDBOX]),
        (["all"], [BROWSER, SANDBOX, FOREIGN, GPU]),
        (["gpu"], [GPU]),
        (["labs"], []),
        (["grading"], [SANDBOX]),
        (["foreign"], [FOREIGN]),
        (["lint"], []),
    ],
)
def test_only_what_is_needed_is_installed(words: list[str], needs: list[Need]) -> None:
    assert plan.asked_for(words).needs == needs


def test_an_unknown_word_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        ValueError, match="there is no 'labz'; there is all, changed, gpu, lint, types, or a folder.*labs"
    ):
        plan.asked_for(["labz"])


def test_a_change_runs_what_it_touches_and_all_where_it_is_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plan, "ROOT", tmp_path)
    monkeypatch.setenv("CI", "")
    (tmp_path / "tests").mkdir()
    one, other, licence = (tmp_path / name for name in ("tests/test_one.py", "tests/test_two.py", "LICENSE"))
    for path in (one, other, licence):
        path.touch()
    touched = Plan(rooms=("tests/test_one.py",), changed=("tests/test_one.py",))
    assert plan.of_change({one}, everything=False) == touched
    assert plan.of_change({licence}, everything=False).runs([]) == {}
    assert plan.of_change(None, everything=False) == Plan()
    monkeypatch.setenv("CI", "true")
    assert plan.of_change({one}, everything=True) == Plan(everything=True)


def test_what_waits_is_left_out_by_its_marker_and_nothing_else() -> None:
    runs = Plan().runs([])
    assert list(runs) == ["tests"] and "not nightly and not timed and not simulated" in runs["tests"]
    runs = Plan(everything=True).runs([BROWSER])
    apart = "not timed and not simulated and not browser"
    assert apart in runs["tests"] and "timed and not browser" in runs["timed"]
    assert "-n" in runs["tests"] and "-n" not in runs["timed"], "what reads a clock runs alone"


@pytest.mark.parametrize(
    ("words", "names", "expression"),
    [
        ("all", ["tests", "timed", "gpu"], "simulated and not weekly"),
        ("gpu", ["gpu"], "simulated and not weekly"),
        ("all gpu", ["gpu"], "simulated"),
        ("gpu test_units.py", ["tests", "gpu"], "simulated and not weekly"),
    ],
)
def test_what_runs_on_simulated_gpus_has_a_run_of_its_own(words: str, names: list[str], expression: str) -> None:
    asked = plan.asked_for(words.split())
    runs = asked.runs([])
    assert list(runs) == names and expression in runs["gpu"]
    assert "gpu" not in asked.runs([GPU])


def test_a_change_builds_no_gpu_but_in_test_all() -> None:
    touched = Plan(rooms=("tests/simulated_gpu/test_pages.py",), changed=("tests/conftest.py",))
    assert touched.needs == [] and list(touched.runs([])) == ["tests"]
    assert list(dataclasses.replace(touched, everything=True).runs([])) == ["tests", "timed", "gpu"]


@pytest.mark.parametrize(("have", "expected"), [(1, 2), (2, 3), (7, 8), (64, 8)])
def test_one_worker_more_than_processors_and_eight_at_most(
    monkeypatch: pytest.MonkeyPatch, have: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(have)), raising=False)
    assert plan.worker_count() == expected
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: have)
    assert plan.worker_count() == expected


def test_what_tests_compile_is_kept_whatever_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "test_it.py").write_text("import sys\n\n\ndef test_it():\n    assert not sys.dont_write_bytecode\n")
    row = command._pytest("tests", ["pytest", "-q", "-c", os.devnull, str(tmp_path)], tmp_path)
    assert (row.verdict, row.said[:8]) == (PASSED, "1 passed"), capfd.readouterr().out
    assert clock.cases(tmp_path)[0][0].endswith("test_it")


@pytest.mark.parametrize(("kind", "heard"), [("background", False), ("terminal", True)])
def test_a_child_hears_ctrl_c_as_the_test_wants_however_the_tests_were_started(
    background: None, request: pytest.FixtureRequest, kind: str, heard: bool
) -> None:
    request.getfixturevalue(kind)
    look = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"]
    assert subprocess.run(look, capture_output=True, text=True).stdout.split() == [str(heard)]


@pytest.mark.parametrize(
    ("name", "owner", "room"),
    [
        ("tests.labs.test_labs test_a_known_wrong_answer_loses_its_points[lab03-no_ticket]", "lab03", "labs"),
        ("tests.notebooks.test_again test_every_cell[07_data_parallelism]", "lesson 07", "notebooks"),
        ("tests.notebooks.test_again test_every_cell[lab07_data_parallelism]", "lab07", "notebooks"),
        ("tests.pages.lesson05.test_pictures test_it", "lesson 05", "pages"),
        ("tests.model.test_zoo test_8_billion[llama_3_08_b]", "", "model"),
        ("tests.test_units test_it", "", "test_units"),
        ("somewhere else", "", "elsewhere"),
    ],
)
def test_whose_time_it_is(name: str, owner: str, room: str) -> None:
    assert (clock.whose(name), clock.room(name)) == (owner, room)


def test_the_tables_of_time_add_up() -> None:
    cases = [("tests.labs.x y[lab01-a]", 3.0), ("tests.notebooks.x y[lab01_b]", 4.5), ("tests.data.x y", 0.01)]
    rooms = clock.by_room(cases)
    assert [row.split() for row in rooms[:2]] == [
        ["notebooks", "1", "tests", "4.5", "s", "60%"],
        ["labs", "1", "tests", "3.0", "s", "40%"],
    ]
    assert rooms[2].startswith("the rest")
    head, lab = clock.by_lesson(cases)
    assert head.split()[-1] == "together" and lab.split() == ["lab01", "4.5", "s", "3.0", "s", "7.5", "s"]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_every_room_has_tests_by_default_and_no_test_waits_twice() -> None:
    """Counted by pytest's own collection, which the numbers at the end of a check come from too."""
    collect = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:nbval", "tests", "-m"]

    def collected(expression: str) -> list[str]:
        ran = subprocess.run([*collect, expression], cwd=ROOT, capture_output=True, text=True)
        return re.findall(r"^tests/[^\n]*::[^\n]*", ran.stdout, re.M)

    at_once = " and ".join(f"not {marker}" for marker in WAITING)
    default, nightly, timed, simulated = (collected(it) for it in (at_once, *WAITING))
    print(f"{len(default)} tests by default, {len(nightly)} nightly, {len(timed)} timed, {len(simulated)} simulated")
    assert default and nightly and timed and simulated
    twice = " or ".join(f"({one} and {other})" for one, other in itertools.combinations(WAITING, 2))
    assert not collected(twice)  # asked once: each collection takes many seconds
    rooms = {path.parent.name for path in ROOT.glob("tests/*/test_*.py")} - {"foreign", "simulated_gpu"}
    assert rooms <= {name.split("/")[1] for name in default}
