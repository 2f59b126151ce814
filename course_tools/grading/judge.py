"""From a rebuilt notebook to points: a run with the student's answers, and a second for checks that use a failed one.

A fault costs its own question. A check that failed, and that leads to an answer of an earlier question which failed,
runs again with a right version of that answer: the solution's, executed behind the last check of its question. A check
that the student passed stays passed. `course grade --carry-errors` leaves the second run out.

The second run has a kernel of its own, when those of the first are gone. An answer can read the right version there.
No message and no note of the second run is kept: only whether a check holds.

INSTRUCTORS.md shows the part of it that instructors see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from nbformat import NotebookNode

from course_tools.author.code import bound, closed, definitions, leads_to, read
from course_tools.author.lab_source import Check, grade_id_of, is_answer, is_check
from course_tools.grading.cells import GUARD, is_students
from course_tools.grading.report.results import (
    AGAIN,
    DIED,
    FAILED,
    GRADED,
    NOT_RUN,
    PASSED,
    TAMPERED,
    TIMEOUT,
    CheckResult,
)
from course_tools.grading.report.words import JUDGED_AGAIN, TOO_BUSY
from course_tools.grading.sandbox.kernel import Kernel, KernelEnded, TooBusyError
from course_tools.grading.sandbox.limits import Limits
from course_tools.grading.session import Run, TamperedError, row_of

_LOST = (FAILED, TIMEOUT, DIED)


@dataclass
class Outcome:
    """The findings: a row for each check, a status of the whole, and notes."""

    checks: list[CheckResult]
    status: str = GRADED
    notes: list[str] = field(default_factory=list)


def judge(notebook: NotebookNode, limits: Limits, isolation: str) -> Outcome:
    """Run a rebuilt notebook and judge it.

    Args:
        notebook: from `rebuild`; `carry_errors` in its `metadata.course`: wrong answers may cost later questions, too.
        limits: the limits of the whole, a second run included.
        isolation: see `sandbox.processes`.
    """
    run = Run(notebook, limits, isolation)
    runs = [run]
    try:
        run.all_cells()
        run.close()
        rows = [run.rows.get(check.grade_id, row_of(check, NOT_RUN)) for check in run.checks]
        if notebook.metadata.get("course", {}).get("carry_errors"):
            return Outcome(rows, run.status, run.notes)
        second = SecondRun(notebook, run)
        runs.append(second)
        if second.doubtful:
            second.all_cells()
        return Outcome(list(map(second.row, rows)), run.status, [*run.notes, *second.findings()])
    except TooBusyError:
        rows = [run.rows.get(check.grade_id, row_of(check, NOT_RUN)) for check in run.checks]
        return Outcome(rows, AGAIN, [*run.notes, TOO_BUSY])
    except TamperedError as finding:
        rows = [row_of(check, TAMPERED) for check in run.checks]
        return Outcome(rows, TAMPERED, [*run.notes, f"the checks were tampered with: {finding}"])
    finally:
        for each in runs:
            each.close()


class SecondRun(Run):
    """Runs the checks that failed and that lead to an earlier question's answer, with right versions of failed ones.

    Args:
        notebook: the notebook of the first run.
        first: the first run, ended. An answer that did not end in time there is not awaited, unless judged again.
    """

    def __init__(self, notebook: NotebookNode, first: Run) -> None:
        super().__init__(notebook, first._limits, first._isolation)
        self._budget = first._budget
        self._first = {check.grade_id: first.rows.get(check.grade_id, row_of(check, NOT_RUN)) for check in self.checks}
        self._leads = leads_to(map(_lasting, self._cells))
        self._last_check = {_question_of(cell): n for n, cell in enumerate(self._cells) if is_check(cell)}
        self._wrong: list[str] = []
        self._judged: dict[str, set[str]] = {}
        self.doubtful = set(self._doubtful()) if first.status != "time limit" else set()
        """The checks that a right version of an earlier answer may change."""
        self._dead_cells = {number for number in first._dead_cells if is_students(self._cells[number])}
        self._endless = first._endless - {self._asked[name].question for name in self.doubtful}
        last = max((n for n, cell in enumerate(self._cells) if grade_id_of(cell) in self.doubtful), default=-1)
        self._cells = self._cells[: last + 1]

    def row(self, row: CheckResult) -> CheckResult:
        """Return a row of the first run, with its points if the check holds now, else with a word that it does not."""
        again = self.rows.get(row.check)
        if row.check not in self._judged or again is None:
            return row
        if again.outcome == PASSED:
            return again
        too = f"\nIt fails with a right version of {_and(self._judged[row.check])}, too."
        return replace(row, message=row.message + too) if row.message else row

    def findings(self) -> Iterator[str]:
        """A note for each question that was judged again: the right versions, the reason, and the points gained."""
        for question in dict.fromkeys(self._asked[name].question for name in self._judged):
            checks = [name for name in self._judged if self._asked[name].question == question]
            names = set[str]().union(*(self._judged[name] for name in checks))
            failed = [name for owner in self._wrong if names & self._names(owner) for name in self._failed(owner)]
            gained = sum(self.rows[name].points for name in checks if name in self.rows)
            change = f"{gained:g} points more" if gained else "no more points"
            yield f"{question}: {JUDGED_AGAIN} {_and(names)}, since yours failed {_and(failed)}: {change}"

    # --- checks that are judged again --------------------------------------------------------------------------------

    def _doubtful(self) -> Iterator[str]:
        """Checks that failed, belong to answered questions, and lead to an earlier question of which a check failed."""
        answered = {_question_of(cell) for cell in self._cells if _about(cell).get("answered")}
        lost = [name for name, row in self._first.items() if row.outcome in _LOST]
        owners = dict.fromkeys(self._asked[name].question for name in lost)
        for number, cell in enumerate(self._cells):
            earlier = [owner for owner in owners if self._last_check[owner] < number]
            if grade_id_of(cell) in lost and _question_of(cell) in answered and self._used(cell, earlier):
                yield grade_id_of(cell)

    def _used(self, check: NotebookNode, owners: Iterable[str]) -> set[str]:
        """The names of these questions' answers that a check of another one leads to."""
        names = set[str]().union(*(self._names(owner) for owner in owners if owner != _question_of(check)))
        return closed(read(check.source), self._leads) & names

    def _names(self, question: str) -> set[str]:
        """The names that the right answers of a question bind."""
        return set[str]().union(*map(bound, self._right(question)))

    def _right(self, question: str) -> list[str]:
        """The solution's cells of a question."""
        answers = (cell for cell in self._cells if is_answer(cell) and _question_of(cell) == question)
        return [_about(cell).get("right", "") for cell in answers if cell.cell_type == "code"]

    def _failed(self, question: str) -> list[str]:
        """The checks of a question that failed; one that was judged again counts by this run."""
        rows = [self.rows.get(name, row) for name, row in self._first.items() if row.question == question]
        return [row.check for row in rows if row.outcome != PASSED]

    # --- cells -------------------------------------------------------------------------------------------------------

    def _prepare(self, number: int) -> None:
        if number in self._dead_cells:
            return
        super()._prepare(number)
        question = self._question(number)
        if self._kernel and is_answer(self._cells[number]) and question in self._endless:
            self._stop(self._kernel, question)
        self._put(number)

    def _judge(self, number: int, check: Check) -> None:
        if used := self._used(self._cells[number], self._wrong) if check.grade_id in self.doubtful else set():
            self._judged[check.grade_id] = used
            super()._judge(number, check)
        else:
            self.rows[check.grade_id] = self._first[check.grade_id]
            try:
                self._replay(self._ready(number), number)
            except KernelEnded as end:
                self._ended(end, number)
        if number == self._last_check[check.question] and self._failed(check.question):
            self._wrong.append(check.question)
            self._put(number)

    def _replay(self, kernel: Kernel, number: int) -> None:
        super()._replay(kernel, number)
        self._put(number)

    def _put(self, number: int) -> None:
        """Run right versions behind the last check of their question and each student's cell that binds them anew."""
        cell, kernel = self._cells[number], self._kernel
        for question in self._wrong:
            last = self._last_check[question]
            anew = number > last and is_students(cell) and bound(cell.source) & self._names(question)
            if kernel and (anew or number == last):
                for right in self._right(question):
                    kernel.run(f"{GUARD}.the_guard().restore()\n{right}", silent=True)


def _lasting(cell: NotebookNode) -> str:
    """The text of a cell that later ones can use: of a check only the functions, as variables go when it has run."""
    return definitions(cell.source) if is_check(cell) else cell.source


def _question_of(cell: NotebookNode) -> str:
    return grade_id_of(cell).split("-")[0]


def _about(cell: NotebookNode) -> dict:
    return cell.metadata.get("course", {})


def _and(names: Iterable[str]) -> str:
    """Names as a list in words: sets in order, lists in theirs."""
    *most, last = sorted(names) if isinstance(names, set) else list(names)
    return f"{', '.join(most)} and {last}" if most else last
