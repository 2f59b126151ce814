"""The `course` command: open lessons and labs, build them, hand them out, grade, and look at this machine.

This module only parses and prints; the work is in `course_lib.commands` and `course_lib.build`. No lesson opens it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from course_lib.build.labs import Lab, find_labs
from course_lib.build.lessons import Lesson, course_root, find_lessons

app = typer.Typer(
    help="Bigger Than One GPU: open the lessons and labs, build them, hand them out, grade, check this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console(highlight=False)

LESSONS = typer.Argument(help="Numbers or names of lessons, such as 00 or 01_float_formats. Default: all of them.")


@app.command(epilog="Examples: `course lab 03`, `course lab lab03 --no-browser`")
def lab(
    lesson: Annotated[str, typer.Argument(help="The lesson or lab to open, such as 02 or lab02.")] = "00",
    browser: Annotated[bool, typer.Option(help="Open a browser; otherwise only print the address.")] = True,
) -> None:
    """Open JupyterLab at a lesson or a lab and print its address. Ctrl-C stops it."""
    from course_lib.commands.lab import open_lab

    items: Sequence[Lesson | Lab] = _labs([lesson]) if _is_lab(lesson) else _lessons([lesson])
    try:
        open_lab(items[0], browser=browser)
    except ValueError as problem:
        raise _refusal(problem) from None


@app.command(epilog="Example: `course run 00 06`")
def run(
    lessons: Annotated[list[str] | None, LESSONS] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a single cell may take.")] = 300,
) -> None:
    """Run lessons from top to bottom without a browser; the notebooks stay as they are.

    Ends with a table: seconds, checks that were made, and the worst ratio of measurement to prediction. The exit code
    is 1 if any cell failed.
    """
    from course_lib.commands.run import run_lessons

    raise typer.Exit(0 if run_lessons(_lessons(lessons), console, timeout_s=timeout) else 1)


@app.command(epilog="Examples: `course build 04 lab02`, `course build --check`")
def build(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Lessons (00, 01_float_formats) and labs (lab01). Default: all of them."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Run nothing; fail if a notebook is out of date.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Take new outputs for cells tagged 'varies', too.")] = False,
) -> None:
    """Execute the sources of lessons and labs and write the notebooks, the same to the byte each time.

    A lesson's source is in lessons/src; a lab's is in solutions/src and gives two notebooks, the students' with stubs
    and without hidden tests, and the solved one. Outputs of cells tagged 'varies' (seconds, for instance) stay as they
    are while the cell is unchanged.
    """
    from course_lib.commands.build import build_all, check_all

    is_lab = [name for name in names or [] if _is_lab(name)]
    is_lesson = [name for name in names or [] if name not in is_lab]
    chosen: list[Lesson | Lab] = [*_lessons(is_lesson)] if is_lesson or not is_lab else []
    chosen += _labs(is_lab) if is_lab or not is_lesson else []
    good = check_all(chosen, console) if check else build_all(chosen, console, fresh=fresh)
    raise typer.Exit(0 if good else 1)


@app.command(epilog="Example: `course release ../handout lab01 lab02 --force`")
def release(
    destination: Annotated[Path, typer.Argument(help="Folder to write; a zip of the same name stands beside it.")],
    labs: Annotated[list[str] | None, typer.Argument(help="Labs to hand out, such as lab01. Default: all.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier release in that folder.")] = False,
) -> None:
    """Write what students get, as a folder and a zip: lessons, labs, library; no solutions and no hidden tests.

    Fails, and writes nothing, if a line of a solution or of a hidden test would go along.
    """
    from course_lib.commands.release import release_course

    try:
        release_course(course_root(), destination, _labs(labs), console, force=force)
    except ValueError as problem:
        raise _refusal(problem) from None


@app.command(epilog="Example: `course grade lab01 downloads/lab01.zip -j 2 --resume`")
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
    executor: Annotated[str, typer.Option(help="Where to grade: local, or dask://HOST:PORT.")] = "local",
) -> None:
    """Grade submissions of a lab: each in a sandbox, hostile ones included; results, feedback and gradebook files.

    Ctrl-C keeps what is finished; the same command with --resume goes on. Exit code 1: the grader failed at some.
    """
    from course_lib.commands.grade import grade_lab, make_limits
    from course_lib.grading.executors import open_executor

    chosen = _labs([lab])[0]
    try:
        limits = make_limits(wall, cell_timeout, memory, processes, max_size)
        with open_executor(executor, jobs) as where:
            folder = out or Path("grades", chosen.name)
            code = grade_lab(chosen, submissions, folder, limits, console, jobs=jobs, resume=resume, executor=where)
    except ValueError as problem:
        raise _refusal(problem) from None
    raise typer.Exit(code)


@app.command(epilog="Example: `course feedback grades/lab01_topic --adjust adjustments.csv --late 10`")
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
    from course_lib.commands.feedback import render_feedback

    try:
        render_feedback(course_root(), out, console, adjust=adjust, late=late)
    except ValueError as problem:
        raise _refusal(problem) from None


@app.command()
def doctor() -> None:
    """Check this machine: Python, PyTorch, devices, real ranks, disk, and the versions against the pinned ones."""
    from course_lib.commands.doctor import examine

    raise typer.Exit(0 if examine(console) else 1)


def _lessons(wanted: list[str] | None) -> list[Lesson]:
    """The lessons that were asked for, or exit with the list of those that there are."""
    try:
        lessons = find_lessons(course_root(), wanted or [])
    except ValueError as problem:
        raise _refusal(problem) from None
    if not lessons:
        console.print("There are no lessons here yet.", style="red")
        raise typer.Exit(2)
    return lessons


def _is_lab(name: str) -> bool:
    return Path(name).name.startswith("lab")


def _labs(wanted: list[str] | None) -> list[Lab]:
    """The labs that were asked for, or exit with the list of those that there are."""
    try:
        return find_labs(course_root(), wanted or [])
    except ValueError as problem:
        raise _refusal(problem) from None


def _refusal(problem: ValueError) -> typer.Exit:
    """Print what is wrong; raise the result to end with exit code 2."""
    console.print(str(problem), style="red", markup=False)
    return typer.Exit(2)
