"""From submissions to results: one at a time with `grade_one`, all of them with `grade_batch`."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import hashlib
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

import nbformat
from nbformat import NotebookNode

from course_tools.author.lab_source import questions
from course_tools.grading.intake.rebuild import Unreadable, WrongLab, rebuild
from course_tools.grading.intake.submissions import Submission
from course_tools.grading.judge import judge
from course_tools.grading.report.results import (
    NOT_GRADED,
    NOT_RUN,
    UNREADABLE,
    WRONG_LAB,
    CheckResult,
    Result,
    load,
    save,
)
from course_tools.grading.sandbox import processes as sandbox
from course_tools.grading.sandbox.limits import Limits

_NAP_S = 0.5


class Executor(Protocol):
    """Anything that runs functions elsewhere: threads, processes, a cluster."""

    def submit(self, fn: Callable, /, *args: Any) -> Any:
        """Start `fn(*args)`; returns a future with `result`, `cancel` and `add_done_callback`."""
        ...


def grade_one(key_text: str, submission: Submission, limits: Limits) -> Result:
    """Grade one submission. Never raises because of its content.

    Args:
        key_text: the whole lab as a notebook's JSON, with solutions and hidden tests.
        submission: the submission of one student.
        limits: the limits of the submission.
    """
    start = time.monotonic()
    key = _read_key(key_text)
    blank = _blank(key, submission, digest_of(key_text, submission))
    try:
        result = _graded(key, submission, limits, blank)
    except Exception as problem:
        note = f"the grader failed ({type(problem).__name__}: {problem})"[:500]
        result = replace(blank, status=NOT_GRADED, digest="").with_notes(note)
    return replace(result, seconds=round(time.monotonic() - start, 3))


def _graded(key: NotebookNode, submission: Submission, limits: Limits, blank: Result) -> Result:
    if submission.problem:
        return replace(blank, status=UNREADABLE).with_notes(submission.problem)
    try:
        rebuilt = rebuild(key, submission.data)
    except (Unreadable, WrongLab) as problem:
        status = UNREADABLE if isinstance(problem, Unreadable) else WRONG_LAB
        return replace(blank, status=status).with_notes(str(problem))
    isolation = sandbox.best_isolation()
    outcome = judge(rebuilt.notebook, limits, isolation)
    graded = replace(blank, checks=tuple(outcome.checks), status=outcome.status, isolated=isolation != sandbox.NONE)
    if not graded.decided:
        graded = replace(graded, digest="")
    notes = [*rebuilt.notes, *outcome.notes]
    if not graded.isolated:
        notes.append("NOT ISOLATED: it ran without bubblewrap, so its code could read and write like the grader")
    return graded.with_notes(*notes)


def grade_batch(
    key_text: str,
    submissions: Sequence[Submission],
    limits: Limits,
    folder: Path,
    *,
    jobs: int = 1,
    resume: bool = False,
    executor: Executor | None = None,
    on_result: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Grade many submissions, and write each result to `folder/STUDENT.json` as soon as it is there.

    Submissions that a busy machine stopped, or on which the grader itself failed (a kernel that did not start), are
    graded once more when all others are done, one at a time.

    Args:
        key_text, limits: as in `grade_one`.
        submissions: the submissions of a batch.
        folder: folder of the results. Each replaces an older one of that student when it is ready, not before.
        jobs: number of submissions at a time, if there is no executor.
        resume: take results that are there already, if submission and lab are still the same.
        executor: where to run; default: threads, which only wait for kernels.
        on_result: called with each result, old or new, in this thread.

    Raises:
        KeyboardInterrupt: Ctrl-C; kernels on this machine are ended, and finished results are on disk. With an
            `executor`, whose workers may still run, this process starts no kernel before its next batch.
    """
    results = _finished(folder, key_text, submissions) if resume else {}
    for old in results.values():
        on_result(old)
    waiting = {submission.student: submission for submission in submissions if submission.student not in results}
    own = concurrent.futures.ThreadPoolExecutor(jobs) if executor is None else None
    pool: Executor = own or cast(Executor, executor)
    futures: dict[str, Any] = {}

    def graded(students: Iterable[str]) -> Iterator[Result]:
        asked = {name: pool.submit(grade_one, key_text, waiting[name], limits) for name in students}
        futures.update(asked)
        for student, future in _as_completed(asked):
            results[student] = _result_of(future, key_text, waiting[student])
            save(results[student], folder)
            yield results[student]

    sandbox.allow()
    try:
        for result in graded(waiting):
            if result.decided:
                on_result(result)
        for student in [name for name, result in results.items() if not result.decided]:  # one at a time
            with contextlib.suppress(concurrent.futures.BrokenExecutor):  # no workers: the result stays undecided
                next(graded([student]))
            on_result(results[student])
    except BaseException:
        for future in futures.values():
            future.cancel()
        sandbox.stop()
        raise
    finally:
        if own:
            own.shutdown(cancel_futures=True)
            sandbox.allow()  # all threads of this batch have ended: others may grade in this process
    return [results[submission.student] for submission in submissions]


def digest_of(key_text: str, submission: Submission) -> str:
    """SHA-256 of the lab and of the submission."""
    parts = (key_text.encode(), submission.data, submission.problem.encode())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _as_completed(futures: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Students and their futures as they are done; of any library whose futures have callbacks."""
    done: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    for student, future in futures.items():
        future.add_done_callback(functools.partial(_put, done, student))
    for _ in futures:
        yield _next(done)


def _next(done: queue.SimpleQueue[tuple[str, Any]]) -> tuple[str, Any]:
    """Wait for the next one that is done, in short naps: a Ctrl-C that comes as a nap begins does not end that nap."""
    while True:
        with contextlib.suppress(queue.Empty):
            return done.get(timeout=_NAP_S)


def _put(done: queue.SimpleQueue, student: str, future: Any) -> None:
    done.put((student, future))


def _result_of(future: Any, key_text: str, submission: Submission) -> Result:
    """The result that came back; a worker that was lost on the way makes one, too."""
    try:
        return future.result()
    except Exception as problem:
        note = f"the worker failed ({type(problem).__name__}: {problem})"[:500]
        return replace(_blank(_read_key(key_text), submission, ""), status=NOT_GRADED).with_notes(note)


def _finished(folder: Path, key_text: str, submissions: Sequence[Submission]) -> dict[str, Result]:
    """The results, by student, that are on disk already and are of these very submissions and this lab."""
    found: dict[str, Result] = {}
    for submission in submissions:
        with contextlib.suppress(OSError, ValueError):
            old = load(folder / f"{submission.student}.json")
            if old.digest == digest_of(key_text, submission):
                found[submission.student] = replace(old, source=submission.source)
                if old.source != submission.source:  # the same file, handed in again: Canvas gave it another number
                    save(found[submission.student], folder)
    return found


@functools.lru_cache(maxsize=4)
def _read_key(key_text: str) -> NotebookNode:
    return nbformat.reads(key_text, as_version=4)


def _blank(key: NotebookNode, submission: Submission, digest: str) -> Result:
    """A result without points, of which nothing was run."""
    checks = [check for question in questions(key) for check in question.checks]
    rows = tuple(CheckResult(c.question, c.grade_id, 0.0, c.points, c.hidden, NOT_RUN) for c in checks)
    return Result(
        lab=key.metadata.get("course", {}).get("lab", ""),
        term=key.metadata.get("course", {}).get("term", ""),
        student=submission.student,
        name=submission.name,
        source=submission.source,
        digest=digest,
        checks=rows,
        notes=submission.notes,
        gradebook_id=submission.gradebook_id,
    )
