"""What every command shares: the terminal, which lessons and labs were meant, and how a refusal is said.

No lesson opens this module.
"""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

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
    """Whether a name or a path means a lab and not a lesson."""
    return Path(name).name.startswith("lab")


def chosen_labs(wanted: list[str] | None) -> list[Lab]:
    """The labs that were asked for, or exit with the list of those that there are."""
    try:
        return find_labs(course_root(), wanted or [])
    except ValueError as problem:
        raise refusal(problem) from None


def refusal(problem: ValueError) -> typer.Exit:
    """Print what is wrong; raise the result to end with exit code 2."""
    console.print(str(problem), style="red", markup=False)
    return typer.Exit(2)
