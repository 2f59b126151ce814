"""The grader's commands of `course`: grade and feedback.

This module only parses and prints; the work is in the modules beside it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from course_tools.choosing import chosen_labs, console, refusal
from course_tools.lessons import course_root


def grade(
    lab: Annotated[str, typer.Argument(help="The lab, such as lab01.")],
    submissions: Annotated[Path, typer.Argument(help="Folder or zip: a folder per student, notebooks, LMS download.")],
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="How many at a time.")] = os.cpu_count() or 1,
    wall: Annotated[float, typer.Option(help="Seconds for one submission.")] = 600,
    cell_timeout: Annotated[float, typer.Option(help="Seconds for one cell.")] = 60,
    memory: Annotated[float, typer.Option(help="GiB for all processes of one submission.")] = 4,
    processes: Annotated[int, typer.Option(help="Processes of one submission, at one time.")] = 64,
    max_size: Annotated[float, typer.Option(help="MiB that a notebook may have.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Where results go. Default: grades/LAB.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep results that are there and still hold.")] = False,
    carry_errors: Annotated[
        bool, typer.Option("--carry-errors", help="Let a wrong answer cost the later questions that use it, too.")
    ] = False,
    term: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose numbers the lab has. Default: those of the last release.")
    ] = None,
    executor: Annotated[str, typer.Option(help="Where to grade: local, or dask://HOST:PORT.")] = "local",
    similar: Annotated[
        bool, typer.Option("--similar", help="Grade nothing; say which answers resemble each other.")
    ] = False,
) -> None:
    """Grade submissions of a lab: each in a sandbox, hostile ones included; results, feedback and gradebook files.

    Ctrl-C keeps what is finished; the same command with --resume goes on. Exit code 1: the grader failed at some.
    """
    from course_tools.author.terms import kept_term
    from course_tools.grading.batch import grade_lab, make_limits
    from course_tools.grading.executors import open_executor
    from course_tools.grading.report.similar import report_similar

    chosen = chosen_labs([lab])[0]
    chosen = replace(chosen, term=kept_term(chosen.root) if term is None else term)
    try:
        limits = make_limits(wall, cell_timeout, memory, processes, max_size)
        folder = out or Path("grades", chosen.name)
        if similar:
            return report_similar(chosen, submissions, folder, limits.submission_bytes, console)
        if chosen.term:
            console.print(f"with the numbers of {chosen.term!r}", markup=False)
        with open_executor(executor, jobs) as where:
            how = {"jobs": jobs, "resume": resume, "carry_errors": carry_errors, "executor": where}
            code = grade_lab(chosen, submissions, folder, limits, console, **how)
    except ValueError as problem:
        raise refusal(problem) from None
    raise typer.Exit(code)


def feedback(
    out: Annotated[Path, typer.Argument(help="The folder that `course grade` wrote, such as grades/lab01_topic.")],
    adjust: Annotated[
        Path | None, typer.Option(help="CSV: student, question, points, days_late, comment. Default: as before.")
    ] = None,
    late: Annotated[float | None, typer.Option(help="Percent of the lab that a day costs. Default: as before.")] = None,
) -> None:
    """Write grades, feedback and gradebook files again, with late days and manual points; nothing is graded again.

    The results stay as they are, so that a corrected file of adjustments replaces the one before. Which file it was is
    kept: later calls of this command and of `course grade` put the same adjustments on.
    """
    from course_tools.grading.report.again import render_feedback

    try:
        render_feedback(course_root(), out, console, adjust=adjust, late=late)
    except ValueError as problem:
        raise refusal(problem) from None


def add_to(app: typer.Typer) -> None:
    """Make these commands part of `course`."""
    examples = "`course grade lab01 downloads/lab01.zip -j 2 --resume`, `course grade lab01 downloads --similar`"
    app.command(epilog=f"Examples: {examples}")(grade)
    app.command(epilog="Example: `course feedback grades/lab01_topic --adjust adjustments.csv --late 10`")(feedback)
