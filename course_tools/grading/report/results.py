"""The result of grading one submission, and its form on disk: one JSON file for each student."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from course_tools.grading.files import write_text

PASSED, FAILED, TIMEOUT, DIED, NOT_RUN, TAMPERED = "passed", "failed", "timeout", "died", "not run", "tampered"
"""Outcomes of a check. `died`: the kernel ended in it; `not run`: the limits of the whole submission were spent."""

GRADED, UNREADABLE, WRONG_LAB = "graded", "unreadable", "wrong lab"
"""Statuses of a submission besides `tampered` and the names of limits (`time limit`, `memory limit`, …)."""

NOT_GRADED = "not graded"
"""Status of a submission at which the grader itself failed: it has no points yet, which is not the same as zero.

Its result has no digest, so `--resume` grades the submission again.
"""

AGAIN = "again"
"""Status of a submission that was stopped because other programs had the machine's cores.

Like a submission that is not graded, such a one has no points yet and no digest.
"""

RESULTS = "results"
"""The folder, inside the one that `course grade` writes, that holds a file for each student."""


@dataclass(frozen=True)
class CheckResult:
    """One check cell of one submission.

    Attributes:
        question: the question of the check, as in `q1`.
        check: the cell's grade_id, as in `q1-values`.
        points, out_of: points earned, and points that could be earned.
        hidden: whether the tests are hidden from students; then `message` is not shown to them.
        outcome: one of the outcomes above.
        message: the check's message when it failed, cut to a bounded length; plain text.
        topic: the topic of those hidden tests that failed, in the words of the lab.
    """

    question: str
    check: str
    points: float
    out_of: float
    hidden: bool
    outcome: str
    message: str = ""
    topic: str = ""


@dataclass(frozen=True)
class Result:
    """One graded submission.

    Attributes:
        lab: name of the lab.
        student: id of the student: a name for files, unique in the batch.
        name: the student's name in the gradebook, from the path of the submission.
        source: the notebook inside the folder of submissions.
        digest: SHA-256 of the submission and of the lab that graded it; equal digests need no second run.
        status: `graded`, or why there are fewer points than the answers might deserve.
        checks: a row for each check cell of the lab, also those that never ran.
        notes: repairs and oddities, in plain words that students may read.
        isolated: whether the code ran in bubblewrap's sandbox.
        seconds: wall time that grading took.
        late_days: whole days late, from the adjustments.
        penalty: points taken off for late days.
        comment: the instructor's words, from the adjustments.
        gradebook_id: identifier of the student in Canvas or Moodle, when the download's file names hold one.
        term: the term for which the lab's numbers were drawn; empty for those of the published course.
    """

    lab: str
    student: str
    name: str
    source: str
    digest: str
    status: str = GRADED
    checks: tuple[CheckResult, ...] = ()
    notes: tuple[str, ...] = ()
    isolated: bool = True
    seconds: float = 0.0
    late_days: float = 0.0
    penalty: float = 0.0
    comment: str = ""
    gradebook_id: str = ""
    term: str = ""

    @property
    def decided(self) -> bool:
        """Whether the points are the submission's own: neither the grader's failure nor a busy machine ended it."""
        return self.status not in (NOT_GRADED, AGAIN)

    @property
    def points(self) -> float:
        """Points of the checks, less the penalty; never below zero."""
        return max(0.0, sum(check.points for check in self.checks) - self.penalty)

    @property
    def out_of(self) -> float:
        """The points of the whole lab."""
        return sum(check.out_of for check in self.checks)

    @property
    def questions(self) -> list[str]:
        """The questions, in the lab's order."""
        return list(dict.fromkeys(check.question for check in self.checks))

    def of(self, question: str) -> list[CheckResult]:
        """The checks of one question."""
        return [check for check in self.checks if check.question == question]

    def with_notes(self, *notes: str) -> Result:
        """The same result with further notes, each said once."""
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, *notes))))


def save(result: Result, folder: Path) -> Path:
    """Write `folder/STUDENT.json`, whole or not at all: an interrupted batch never leaves half a file."""
    path = folder / f"{result.student}.json"
    write_text(path, json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n")
    return path


def load(path: Path) -> Result:
    """Read a result back.

    Raises:
        ValueError: the file is not a result.
    """
    try:
        fields = json.loads(path.read_text("utf-8"))
        checks = tuple(CheckResult(**check) for check in fields.pop("checks"))
        return Result(checks=checks, notes=tuple(fields.pop("notes")), **fields)
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise ValueError(f"{path} is not a result of `course grade` ({problem})") from None


def load_all(out: Path) -> list[Result]:
    """Every result that `course grade` left below `out`, by student.

    Raises:
        ValueError: a file there is not a result, or they are of several labs.
    """
    results = [load(path) for path in sorted((out / RESULTS).glob("*.json"))]
    if len(labs := sorted({result.lab for result in results})) > 1:
        raise ValueError(f"{out} holds results of {', '.join(labs)}; grade each lab into a folder of its own")
    return results


def total(results: Iterable[Result]) -> float:
    """The points of the whole lab, from the first result that has them."""
    return next((result.out_of for result in results if result.out_of), 0.0)
