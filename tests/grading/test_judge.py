"""A fault costs its own question: later ones run with a right version, which nobody gets to read."""

from __future__ import annotations

import copy
import dataclasses

import nbformat
import pytest
from nbformat import NotebookNode

from course_tools.author.lab_source import grade_id_of, read_lab, student_version
from course_tools.grading.grade import grade_one
from course_tools.grading.intake.rebuild import rebuild
from course_tools.grading.judge import Outcome, SecondRun, judge
from course_tools.grading.report.feedback import as_markdown
from course_tools.grading.report.results import FAILED, PASSED, TAMPERED, TIMEOUT
from course_tools.grading.sandbox import processes as sandbox
from course_tools.grading.sandbox.limits import MIB
from course_tools.grading.session import Run, row_of
from course_tools.labs import find_labs
from course_tools.lessons import course_root
from tests.grading.conftest import HALF, QUICK, Grade, cell_of, notebook, outcomes, points, submission

pytestmark = pytest.mark.notebook
both = pytest.mark.usefixtures("way")
"""In the strongest isolation of this machine, nightly plainly as well; the rest runs plainly on every machine."""

WRONG = "def moving_average(numbers, width):\n    return [0.0]\n"
BY_WINDOW = "def half(number):\n    return moving_average([number, 0.0], 2)[0]\n"
"""Right, if moving_average is: what an answer is whose author built on the question before."""
JUDGED = "q3: judged again with a right version of moving_average, since yours failed q1-values and q1-hidden"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that were begun: one, or two."""
    found: list[Run] = []
    all_cells = Run.all_cells
    monkeypatch.setattr(Run, "all_cells", lambda self: (found.append(self), all_cells(self)))
    return found


@both
def test_an_error_costs_its_own_question(key: NotebookNode, grade: Grade, begun: list[Run]) -> None:
    result = grade(q1=WRONG, q3=BY_WINDOW)
    assert points(result) == {"q1": 0, "q3": 20} and len(begun) == 2
    assert [note for note in result.notes if "ISOLATED" not in note] == [f"{JUDGED}: 20 points more"]
    assert "with a right version of moving" in as_markdown(result, key)


def test_what_held_with_an_own_answer_is_not_asked_again(grade: Grade) -> None:
    """Negative numbers only are wrong: q3-values holds, q3-hidden does not."""
    own = "def moving_average(numbers, width):\n    return [abs(sum(numbers[:width])) / width]\n"
    result = grade(q1=own, q3=BY_WINDOW)
    assert points(result) == {"q1": 0, "q3": 20}
    assert f"{JUDGED}: 10 points more" in result.notes


def test_an_endless_answer_is_replaced_too(grade: Grade) -> None:
    endless = "def moving_average(numbers, width):\n    while True: pass\n"
    result = grade(q1=endless, q3=BY_WINDOW, limits=dataclasses.replace(QUICK, cell_s=2))
    assert outcomes(result, "q1") == [TIMEOUT, TIMEOUT] and outcomes(result, "q3") == [PASSED, PASSED]


def test_a_copy_in_a_later_cell_is_replaced_and_what_is_bound_beside_stays(grade: Grade) -> None:
    later = f"{WRONG}\n\n{BY_WINDOW.replace(', 2)', ', WIDTH)')}"
    assert points(grade(q1=f"{WRONG}\n\nWIDTH = 2\n", q3=later)) == {"q1": 0, "q3": 20}


# --- when there is a second run ---------------------------------------------------------------------------------------


def first_run(key: NotebookNode, monkeypatch: pytest.MonkeyPatch, failed: str = "q1 q3", **answers: str) -> Outcome:
    """What is made of a first run in which these questions failed; the second one passes what it is given."""

    def all_cells(run: Run) -> None:
        names = run.doubtful if isinstance(run, SecondRun) else {check.grade_id for check in run.checks}
        for check in (check for check in run.checks if check.grade_id in names):
            lost = check.question in failed and not isinstance(run, SecondRun)
            run.rows[check.grade_id] = row_of(check, FAILED if lost else PASSED, points=0 if lost else check.points)
            if isinstance(run, SecondRun):
                run._wrong, run._judged[check.grade_id] = ["q1"], {"moving_average"}

    monkeypatch.setattr(Run, "all_cells", all_cells)
    data = submission(notebook(key, **{"q1": WRONG, "q3": BY_WINDOW, **answers})).data
    return judge(rebuild(key, data).notebook, QUICK, sandbox.NONE)


def total(outcome: Outcome) -> float:
    return sum(row.points for row in outcome.checks)


def test_what_failed_and_uses_what_failed_is_judged_again(key: NotebookNode, monkeypatch: pytest.MonkeyPatch) -> None:
    found = first_run(key, monkeypatch)
    assert total(found) == 20 and found.notes == [f"{JUDGED}: 20 points more"]
    through = "def beside(numbers):\n    return moving_average(numbers, 2)\n\n\n"
    called = BY_WINDOW.replace("moving_average([number, 0.0], 2)", "beside([number, 0.0])")
    assert total(first_run(key, monkeypatch, q3=through + called)) == 20, "also where another function is between"


def test_instructors_can_turn_it_off(key: NotebookNode, monkeypatch: pytest.MonkeyPatch) -> None:
    carrying = copy.deepcopy(key)
    carrying.metadata["course"]["carry_errors"] = True
    found = first_run(carrying, monkeypatch)
    assert total(found) == 0 and not found.notes


@pytest.mark.parametrize(
    ("failed", "q3"),
    [
        pytest.param("q1", BY_WINDOW, id="nothing else failed"),
        pytest.param("q1 q3", HALF, id="what failed uses nothing of it"),
        pytest.param("q3", BY_WINDOW, id="what it uses is right"),
        pytest.param("q1 q3", "", id="not answered"),
    ],
)
def test_nothing_runs_twice_without_need(
    key: NotebookNode, monkeypatch: pytest.MonkeyPatch, failed: str, q3: str
) -> None:
    stub = cell_of(student_version(key), "q3").source
    found = first_run(key, monkeypatch, failed, q3=q3 or stub)
    assert total(found) == 60 - sum({"q1": 40, "q3": 20}[name] for name in failed.split())
    assert not any("judged again" in note for note in found.notes)


# --- who would read it ------------------------------------------------------------------------------------------------

SPY = """\
import base64, linecache, os, sys

def half(number):
    code = moving_average.__code__
    text = "".join("".join(lines[2]) for lines in linecache.cache.values() if len(lines) > 2)
    text += "".join(map(str, globals().get("In", [])))
    if " = ".join(["starts", "range(len"]) not in text and "starts" not in code.co_varnames:
        raise ValueError("not yet")
    said = "FOUND" + base64.b64encode(code.co_code).decode()
    globals()["kept"] = said
    print(said, file=sys.__stderr__)
    raise ValueError(said)
"""
"""Looks for the solution of q1 wherever an answer may look (checks refuse `inspect`), and tells everybody."""


@both
def test_who_reads_the_right_version_can_tell_nobody(
    key: NotebookNode, grade: Grade, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    verdict = Run._verdict
    monkeypatch.setattr(
        Run, "_verdict", lambda run, check, reply, once: heard.append(reply.text) or verdict(run, check, reply, once)
    )
    result = grade(q1=WRONG, q3=SPY)
    assert any("FOUND" in text for text in heard), "the spy is no spy: it found nothing where it could"
    assert points(result) == {"q1": 0, "q3": 0} and f"{JUDGED}: no more points" in result.notes
    first, hidden = result.of("q3")
    assert "not yet" in first.message, "what is said is what the checks said of the student's own"
    assert first.message.endswith("\nIt fails with a right version of moving_average, too.") and not hidden.message
    assert "FOUND" not in str(result) and "starts" not in str(result) + as_markdown(result, key)


def test_who_tampers_in_the_second_run_loses_everything(grade: Grade) -> None:
    """Quiet while the own version runs; with the right one, every check would hold."""
    quiet = """\
def half(number):
    if "starts" in moving_average.__code__.co_varnames:
        check.equal.__code__ = (lambda *a, **k: None).__code__
    return 0.0
"""
    assert {row.outcome for row in grade(q1=WRONG, q3=quiet).checks} == {TAMPERED}


# --- a real lab -------------------------------------------------------------------------------------------------------


@pytest.mark.nightly  # test_an_error_costs_its_own_question tells it of the tiny lab
def test_an_error_in_lab_02_costs_its_own_question() -> None:
    """The last norm is forgotten in question 1, and question 2 builds on it. The rest of the lab is cut."""
    key = read_lab(find_labs(course_root(), ["lab02"])[0])
    names = [grade_id_of(cell) for cell in key.cells]
    key.cells = key.cells[: max(number for number, name in enumerate(names) if name.startswith("q2-")) + 1]
    book = copy.deepcopy(key)
    first = cell_of(book, "q1")
    assert "* shape.layers + [(h,)]," in first.source
    first.source = first.source.replace("* shape.layers + [(h,)],", "* shape.layers,")
    limits = dataclasses.replace(QUICK, wall_s=1500, cell_s=300, memory_bytes=4096 * MIB, processes=64)
    result = grade_one(nbformat.writes(key), submission(book), limits)
    assert {row.check for row in result.checks if row.outcome != PASSED} == {"q1-values", "q1-hidden"}, result.notes
    assert any(note.startswith("q2: judged again with a right version of tensors, since") for note in result.notes)
