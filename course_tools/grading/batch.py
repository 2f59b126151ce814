"""`course grade`: the lines that are printed while a batch is graded, and at its end.

INSTRUCTORS.md explains the command.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from course_tools.author.lab_source import read_lab
from course_tools.grading.grade import grade_batch
from course_tools.grading.intake.submissions import find_submissions
from course_tools.grading.report.adjustments import Rules, read_adjustments
from course_tools.grading.report.again import report
from course_tools.grading.report.results import GRADED, RESULTS, Result, load_all
from course_tools.grading.sandbox.limits import Limits
from course_tools.labs import Lab

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it; after `kill`, too."""


def grade_lab(
    lab: Lab,
    where: Path,
    out: Path,
    limits: Limits,
    console: Console,
    *,
    jobs: int,
    resume: bool = False,
    carry_errors: bool = False,
    executor: Any = None,
) -> int:
    """Grade all submissions, show progress, write results and reports, and return the exit code.

    The reports are about everyone who has a result in `out`: a student who was graded earlier keeps a row. Adjustments
    that `course feedback` has put on results in `out` are put on these, too.

    Args:
        lab: the lab, with its source.
        where: folder or zip of submissions.
        out: gets `results/` and the reports.
        limits: the limits of one submission.
        console: where to print.
        jobs: number of submissions at a time.
        resume: keep results of an earlier run that still hold.
        carry_errors: let a wrong answer cost later questions, too, instead of judging those with a right version.
        executor: where to grade, if not in threads here.

    Raises:
        ValueError: there are no submissions, the lab's source is wrong, `out` holds results of another lab, or the
            adjustments cannot be meant.
    """
    if any(result.lab != lab.name for result in load_all(out)):
        raise ValueError(f"{out} holds results of another lab; give --out another folder")
    if (rules := Rules.kept(out)).file:
        read_adjustments(rules.file)  # better a complaint now than after an hour
    key = read_lab(lab)
    if carry_errors:  # a part of the digested lab: `resume` keeps no results of the other kind
        key.metadata["course"]["carry_errors"] = True
    submissions = find_submissions(where, lab.name, largest_bytes=limits.submission_bytes)
    done: list[Result] = []
    with _progress(lab.name, len(submissions), done, console) as advance, _ended_as_by_ctrl_c():
        options = {"jobs": jobs, "resume": resume, "executor": executor, "on_result": advance}
        try:
            results = grade_batch(nbformat.writes(key), submissions, limits, out / RESULTS, **options)
        except KeyboardInterrupt:
            console.print(f"\nstopped: {len(done)} of {len(submissions)} are graded, in {out / RESULTS}")
            console.print("the same command with --resume goes on from there", style="bold")
            return INTERRUPTED
    everyone = load_all(out)
    with _results_are_safe(out):
        report(everyone, out, key, console, rules)
    if earlier := len(everyone) - len(results):
        console.print(f"{earlier} of these {len(everyone)} were graded earlier and not handed in again this time")
    console.print(f"results and reports are in {out}", markup=False)
    return 1 if any(not result.decided for result in results) else 0


@contextlib.contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Take `kill` for Ctrl-C, which a batch in the background does not hear: plain kernels would outlive the batch."""
    if threading.current_thread() is not threading.main_thread():  # handlers are set in the main thread only
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _results_are_safe(out: Path) -> Iterator[None]:
    """Add the way to go on to the error of adjustments that cannot be meant: the results are kept."""
    try:
        yield
    except ValueError as problem:
        again = f"The results are there, the reports are not: mend the file, then `course feedback {out}`."
        raise ValueError(f"{problem}\n{again}") from None


def make_limits(wall_s: float, cell_s: float, memory_gib: float, processes: int, size_mib: float) -> Limits:
    """Limits in the units of the command line.

    Raises:
        ValueError: one of them is not above 0.
    """
    memory, size = int(memory_gib * 2**30), int(size_mib * 2**20)
    return Limits(wall_s=wall_s, cell_s=cell_s, memory_bytes=memory, processes=processes, submission_bytes=size)


@contextlib.contextmanager
def _progress(name: str, total: int, done: list[Result], console: Console) -> Iterator[Callable[[Result], None]]:
    """A bar; the yielded function takes each result as it comes, into `done`, and prints those that deserve a line."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *left, console=console, transient=True) as progress:
        task = progress.add_task(f"grading {name}", total=total)

        def advance(result: Result) -> None:
            done.append(result)
            progress.advance(task)
            if result.status != GRADED or not console.is_terminal:
                console.print(_line(result), markup=False)

        yield advance


def _line(result: Result) -> str:
    return f"{result.student}: {result.points:g} of {result.out_of:g}, {result.status}"
