"""The author's commands of `course`: build and release.

This module only parses and prints; the work is in the modules beside it. No lesson opens it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from course_tools.choosing import chosen_labs, chosen_lessons, console, is_lab, refusal
from course_tools.labs import Lab
from course_tools.lessons import Lesson, course_root


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
    from course_tools.author.build_all import build_all, check_all

    labs = [name for name in names or [] if is_lab(name)]
    lessons = [name for name in names or [] if name not in labs]
    chosen: list[Lesson | Lab] = [*chosen_lessons(lessons)] if lessons or not labs else []
    chosen += chosen_labs(labs) if labs or not lessons else []
    good = check_all(chosen, console) if check else build_all(chosen, console, fresh=fresh)
    raise typer.Exit(0 if good else 1)


def release(
    destination: Annotated[Path, typer.Argument(help="Folder to write; a zip of the same name stands beside it.")],
    labs: Annotated[list[str] | None, typer.Argument(help="Labs to hand out, such as lab01. Default: all.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier release in that folder.")] = False,
) -> None:
    """Write what students get, as a folder and a zip: lessons, labs, library; no solutions and no hidden tests.

    Fails, and writes nothing, if a line of a solution or of a hidden test would go along.
    """
    from course_tools.author.release import release_course

    try:
        release_course(course_root(), destination, chosen_labs(labs), console, force=force)
    except ValueError as problem:
        raise refusal(problem) from None


def add_to(app: typer.Typer) -> None:
    """Make these commands part of `course`."""
    app.command(epilog="Examples: `course build 04 lab02`, `course build --check`")(build)
    app.command(epilog="Example: `course release ../handout lab01 lab02 --force`")(release)
