"""The parts that every command shares: the terminal, the choice of lessons and labs, the words of a refusal."""

from __future__ import annotations

import os
from pathlib import Path

import typer
from rich.console import Console

from course_tools.copying import copy_course, has_course
from course_tools.labs import Lab, find_labs
from course_tools.lessons import Lesson, course_root, find_lessons

console = Console(highlight=False)


def chosen_lessons(wanted: list[str] | None) -> list[Lesson]:
    """The lessons that were asked for, or exit with the list of those that there are."""
    try:
        lessons = find_lessons(course_root(), wanted or [])
    except ValueError as problem:
        raise refusal(problem) from None
    if not lessons:
        console.print("There are no lessons here yet.", style="red")
        raise typer.Exit(2)
    return lessons


def is_lab(name: str) -> bool:
    """Return whether a name or a path means a lab and not a lesson."""
    return Path(name).name.startswith("lab")


def chosen_labs(wanted: list[str] | None) -> list[Lab]:
    """The labs that were asked for, or exit with the list of those that there are."""
    try:
        return find_labs(course_root(), wanted or [])
    except ValueError as problem:
        raise refusal(problem) from None


def go_to_the_course(copy_to: Path | None) -> None:
    """Work in the folder that holds the course from now on; where there is none, or another is wanted, make one."""
    try:
        if copy_to is None and has_course():
            return
        target = (copy_to or Path("bigger-than-one-gpu")).expanduser().resolve()
        written, kept = copy_course(target)
        os.chdir(target)
    except ValueError as problem:
        raise refusal(problem) from None
    stayed = f"; {kept} were there and stay as they are" if kept else ""
    console.print(f"{written} files of the course copied to {target}{stayed}.")


def refusal(problem: ValueError) -> typer.Exit:
    """Print the error; raise the result to end with exit code 2."""
    console.print(str(problem), style="red", markup=False)
    return typer.Exit(2)
