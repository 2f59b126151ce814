"""One submission from its rebuilt notebook to points: cell by cell through untrusted kernels.

Hidden tests are never on a disk of the sandbox; a kernel sees a check's text when that check runs. A kernel that dies
or hangs costs the question that it was at. The next kernel gets the given cells and the answers again, and of earlier
checks only the functions that they define. An answer that did not end in time is not waited for again: any later call
of its functions raises an error at once.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import replace

from nbformat import NotebookNode

from course_kit.own_time import BUSY
from course_tools.author.check_cells import topic_of
from course_tools.author.code import defined, definitions
from course_tools.author.lab_source import Check, grade_id_of, is_answer, is_check, questions
from course_tools.grading.cells import (
    FAILED_LINE,
    GUARD,
    first_line,
    hidden_lines,
    is_students,
    isolated,
    last_line,
    remember,
    source_of,
    stopped,
)
from course_tools.grading.report.results import DIED, FAILED, GRADED, PASSED, TIMEOUT, CheckResult
from course_tools.grading.sandbox import kernel as kernels
from course_tools.grading.sandbox.kernel import Budget, Kernel, KernelEnded, Reply, TooBusyError
from course_tools.grading.sandbox.limits import Limits

_NOT_DONE = re.compile(r"not done after [\d.]+ s:")
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CELL = re.compile(r"\bcell \[(\d{1,6})\]", re.ASCII)
_START_S = 120.0
_LIMITS = {kernels.MEMORY: "memory limit", kernels.PROCESSES: "process limit", kernels.FILES: "file limit"}


class TamperedError(Exception):
    """Something that must fail did not."""


class Run:
    """The state of one run: the kernel, the cells that it has seen, the questions that are lost.

    Args:
        notebook: from `rebuild`.
        limits: the limits of the whole.
        isolation: see `sandbox.processes`.
    """

    def __init__(self, notebook: NotebookNode, limits: Limits, isolation: str) -> None:
        self._cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        self._limits, self._isolation = limits, isolation
        self._budget = Budget(limits.wall_s)
        self._kernel: Kernel | None = None
        self._dead_cells: set[int] = set()
        self._lost: dict[str, tuple[str, str]] = {}
        self._endless: set[str] = set()
        self._asked = {check.grade_id: check for question in questions(notebook) for check in question.checks}
        self.checks = list(self._asked.values())
        self.rows: dict[str, CheckResult] = {}
        self.status = GRADED
        self.notes: list[str] = []
        self._raised: dict[str, str] = {}
        self._shown: list[NotebookNode] = []

    def close(self) -> None:
        """End the kernel, if there is one."""
        if self._kernel:
            self._kernel.close()
            self._kernel = None

    def all_cells(self) -> None:
        """Run every cell in order, until the time is up."""
        last = max((number for number, cell in enumerate(self._cells) if is_check(cell)), default=-1)
        try:
            for number, cell in enumerate(self._cells[: last + 1]):
                if is_check(cell):
                    self._judge(number, self._asked[grade_id_of(cell)])
                else:
                    self._prepare(number)
            if self._kernel:
                self._canary(self._kernel)
        except KernelEnded as end:
            if end.reason != kernels.WALL:
                return  # only the last canary is not inside a try: a kernel that is gone by then decides nothing
            self.status = "time limit"
            self.notes.append(f"the time limit of the whole lab, {self._limits.wall_s:g} s, was reached")

    # --- kernels ---------------------------------------------------------------------------------------------------

    def _ready(self, number: int) -> Kernel:
        """A kernel that has seen every cell before `number`."""
        while self._kernel is None:
            fresh = Kernel(self._limits, self._isolation, self._budget)
            self._kernel, self._shown = fresh, []
            self._start(fresh)
            for earlier in range(number):
                try:
                    self._replay(fresh, earlier)
                except KernelEnded as end:
                    self._ended(end, earlier)
                    break
        return self._kernel

    def _start(self, kernel: Kernel) -> None:
        """Run the first cell of a kernel, before any code of a student."""
        source = f"__import__('course_kit.checks.check')\n{GUARD}.start(get_ipython())"
        try:
            reply = kernel.run(source, silent=True, limit_s=_START_S)
        except KernelEnded as end:
            raise end if end.reason == kernels.WALL else RuntimeError(f"a kernel did not start: {end}") from None
        if reply.error:
            raise RuntimeError(f"a kernel did not start: {reply.error}: {reply.text[:500]}")

    def _replay(self, kernel: Kernel, number: int) -> None:
        cell = self._cells[number]
        if number in self._dead_cells:
            return
        if is_check(cell):
            kernel.run(f"{definitions(cell.source)}\n{remember(cell)}", silent=True)
        else:
            self._show(kernel, cell)
            if self._question(number) in self._endless:
                self._stop(kernel, self._question(number))

    def _ended(self, end: KernelEnded, number: int) -> None:
        """Take note of a kernel that ended in a cell that is no check; the cell will not run again."""
        self._kernel = None
        if end.reason == kernels.WALL:
            raise end
        self._dead_cells.add(number)
        outcome, message = self._reason(end.reason)
        if is_students(self._cells[number]):
            self._lose(self._question(number), outcome, message)
        else:
            self._lose_shown(number, outcome, message)
            if end.reason == kernels.TIMEOUT and self._question(number) in self._lost:
                self._endless.add(self._question(number))

    def _reason(self, reason: str) -> tuple[str, str]:
        """Outcome and message for a kernel that ended."""
        self.status = _LIMITS.get(reason, self.status)
        limits = self._limits
        return {
            kernels.DIED: (DIED, "the process that ran it ended"),
            kernels.TIMEOUT: (TIMEOUT, f"it did not end within {limits.cell_s:g} s, and did not stop when interrupted"),
            kernels.MEMORY: (DIED, f"it used more than {limits.memory_bytes / 2**30:.3g} GiB of memory"),
            kernels.PROCESSES: (DIED, f"it had more than {limits.processes} processes"),
            kernels.FILES: (DIED, "it wrote too much to disk"),
        }[reason]

    # --- cells -----------------------------------------------------------------------------------------------------

    def _prepare(self, number: int) -> None:
        """Run a given cell, an answer, or a cell that a student added: errors are the checks' business, not ours."""
        cell = self._cells[number]
        kernel = self._ready(number)
        question = self._question(number)
        try:
            reply = self._show(kernel, cell)
            if reply.late and not is_students(cell) and self._lost.keys() <= {question}:
                self._stop(kernel, question)
        except KernelEnded as end:
            self._ended(end, number)
            return
        if reply.late:
            self._dead_cells.add(number)  # it need not run out of time twice
            self.notes.append(f"{question or 'a given cell'}: a cell was stopped after {self._limits.cell_s:g} s")
            if not is_students(cell):
                self._lose_shown(number, TIMEOUT, f"the cell above it did not end within {self._limits.cell_s:g} s")
        elif reply.error and not question:
            self.notes.append(f"a cell of the lab itself failed ({reply.error}): please tell the instructor")
        elif reply.error and is_students(cell) and reply.error != "NotImplementedError":
            self._raised[question] = reply.error[:100]
            self.notes.append(f"{question}: its cell raises {reply.error[:100]}: {self._clean(reply.text)[:200]}")

    def _judge(self, number: int, check: Check) -> None:
        if check.question in self._lost:
            self.rows[check.grade_id] = row_of(check, *self._lost[check.question])
            return
        kernel = self._ready(number)
        if check.question in self._lost:  # while an earlier cell ran again
            self.rows[check.grade_id] = row_of(check, *self._lost[check.question])
            return
        number_once = secrets.token_hex(16)
        cell = self._cells[number]
        parts = (f"{GUARD}.the_guard().restore()", isolated(cell), remember(cell), last_line(number_once))
        try:
            reply = kernel.run("\n".join(parts), silent=True)
            if reply.late:
                self._stop(kernel, check.question)
            topic = self._topic(kernel, cell) if check.hidden and reply.text != number_once else ""
        except KernelEnded as end:
            self._kernel = None
            if end.reason == kernels.WALL:
                raise
            outcome, message = self._reason(end.reason)
            if end.reason == kernels.TIMEOUT:
                self._endless.add(check.question)
            self._lose(check.question, outcome, "not run: an earlier check of this question ended the process")
            self.rows[check.grade_id] = row_of(check, outcome, message)
            return
        self.rows[check.grade_id] = replace(self._verdict(check, reply, number_once), topic=topic)

    def _topic(self, kernel: Kernel, cell: NotebookNode) -> str:
        """The topic of those of a check's hidden tests that have just failed. (The number comes from the kernel, which
        can choose only among topics that stand in the students' notebook.)"""
        reply = kernel.run(FAILED_LINE, silent=True)
        return topic_of(cell, int(reply.text)) if re.fullmatch(r"\d{1,6}", reply.text, re.ASCII) else ""

    def _verdict(self, check: Check, reply: Reply, number_once: str) -> CheckResult:
        if reply.error == "AssertionError" and reply.text == number_once:
            return row_of(check, PASSED, points=check.points)
        if not reply.error:
            raise TamperedError(f"{check.grade_id} ran to its end, but an assert that must fail did not")
        if reply.error == "Tampered" and reply.text.startswith(number_once):
            raise TamperedError(f"replaced: {self._clean(reply.text.removeprefix(number_once))[:300]}")
        if reply.late:
            self._lose(check.question, TIMEOUT, "not run: an earlier check of this question did not end in time")
            return row_of(check, TIMEOUT, f"it did not end within {self._limits.cell_s:g} s")
        if BUSY in reply.text[:5000]:
            raise TooBusyError
        if _NOT_DONE.search(reply.text[:5000]):
            self._lose(check.question, TIMEOUT, "not run: an earlier check of this question did not end in time")
        known = reply.error in ("CheckFailed", "AssertionError")
        message = reply.text if known else f"{reply.error[:100]}: {reply.text}"
        if reply.error == "NameError" and check.question in self._raised:
            message += f", since the cell that answers this question ended with {self._raised[check.question]}"
        return row_of(check, FAILED, "" if check.hidden else self._clean(message))

    def _canary(self, kernel: Kernel) -> None:
        """Run an assert that must fail, once more at the end, without anything of ours in the kernel."""
        number_once = secrets.token_hex(16)
        reply = kernel.run(f"assert 1 == 2, {number_once!r}", silent=True)
        if (reply.error, reply.text) != ("AssertionError", number_once):
            raise TamperedError("at the end, an assert that must fail did not")

    # --- small things ----------------------------------------------------------------------------------------------

    def _question(self, number: int) -> str:
        """The question that a cell belongs to: a student's own, else the last one answered before it."""
        for cell in reversed(self._cells[: number + 1]):
            if is_answer(cell):
                return grade_id_of(cell).split("-")[0]
            if extra := cell.metadata.get("course", {}).get("extra"):
                return extra
        return ""

    def _stop(self, kernel: Kernel, question: str) -> None:
        """Let the functions of an answer that did not end in time raise an error from now on."""
        self._endless.add(question)
        texts = [cell.source for n, cell in enumerate(self._cells) if is_answer(cell) and self._question(n) == question]
        names = sorted(set().union(*map(defined, texts)))
        kernel.run("\n".join(map(stopped, names)), silent=True)

    def _lose_shown(self, number: int, outcome: str, message: str) -> None:
        """Give up the question of a given cell that ended its kernel or ran out of time: its checks would wait as long.

        With another question lost already, the cell may have called that one's answer. Then the checks decide.
        """
        if not self._lost:
            self._lose(self._question(number), outcome, message)

    def _lose(self, question: str, outcome: str, message: str) -> None:
        self._lost.setdefault(question, (outcome, message))

    def _show(self, kernel: Kernel, cell: NotebookNode) -> Reply:
        """Run a cell that the kernel counts: messages call it "cell [5]"."""
        self._shown.append(cell)
        return kernel.run(source_of(cell))

    def _cell_name(self, found: re.Match) -> str:
        """A cell by its first line, since the student's notebook has other numbers."""
        number = int(found[1]) - 1
        line = first_line(self._shown[number])[:60] if 0 <= number < len(self._shown) else ""
        return f"the cell «{line}»" if line else found[0]

    def _clean(self, text: str) -> str:
        """Plain text of bounded length that says nothing of hidden tests."""
        longest = self._limits.message_chars
        text = _CELL.sub(self._cell_name, _CONTROL.sub("", text[: 4 * longest]))
        secret_lines = (line.strip() for cell in self._cells for line in hidden_lines(cell))
        if any(len(line) > 12 and line in text for line in secret_lines):
            return "(a message that quotes a hidden test is not shown)"
        return text if len(text) <= longest else text[:longest] + " …"


def row_of(check: Check, outcome: str, message: str = "", *, points: float = 0.0) -> CheckResult:
    """A row of the result, without the message of a hidden check that failed."""
    message = "" if check.hidden and outcome == FAILED else message
    return CheckResult(check.question, check.grade_id, points, check.points, check.hidden, outcome, message)
