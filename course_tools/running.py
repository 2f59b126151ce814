"""`course run`: lessons from top to bottom without a browser, and a table of their measurements.

The numbers come from the outputs: `compare` leaves them in its output's metadata.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from course_tools.kernel import execute
from course_tools.lessons import Lesson
from course_tools.witnesses import Row, tables


@dataclass(frozen=True)
class ComparedRow:
    """One checked row of a `compare`: its name, measurement over prediction (None: infinite), and the verdict."""

    name: str
    ratio: float | None
    ok: bool

    @property
    def deviation(self) -> float:
        """Distance of the ratio from 1, the same for twice as much and half as much."""
        return abs(math.log(self.ratio)) if self.ratio and self.ratio > 0 else math.inf


@dataclass
class LessonRun:
    """The outcome of one lesson. `problem` is None where every cell ran, else the failing cell and its error.

    `notebook` has the outputs of this run.
    """

    lesson: Lesson
    seconds: float = 0.0
    checks: list[ComparedRow] = field(default_factory=list)
    problem: str | None = None
    notebook: NotebookNode | None = None

    @property
    def worst(self) -> ComparedRow | None:
        """The check whose ratio is farthest from 1."""
        return max(self.checks, key=lambda check: check.deviation, default=None)


def run_lessons(lessons: Sequence[Lesson], console: Console, *, timeout_s: float = 300, checks: bool = False) -> bool:
    """Run the notebooks as they are on disk, show progress, print a table, and return whether all cells ran.

    The notebooks on disk stay as they are. A lesson that fails does not stop the others. With `checks`, every table of
    a lesson is listed, with where its two numbers come from.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results = []
    with Progress(*columns, console=console, transient=True) as progress:
        for lesson in lessons:
            if not console.is_terminal:
                console.print(f"running {lesson.name}")
            task = progress.add_task(lesson.name)
            results.append(run_lesson(lesson, timeout_s, _advance(progress, task)))
            progress.remove_task(task)
    for result in results:
        if result.problem:
            console.print(f"\n✗ {result.lesson.name}", style="bold red")
            console.print(Text.from_ansi(result.problem), soft_wrap=True)
        if checks and result.notebook:
            console.print(origins(result.lesson.name, result.notebook))
    wide = console if console.is_terminal else Console(file=console.file, width=max(console.width, 120))
    wide.print(table(results))  # a log has room for each name
    return not any(result.problem for result in results)


def _advance(progress: Progress, task) -> Callable[[int, int], None]:
    return lambda done, total: progress.update(task, completed=done, total=total)


def run_lesson(lesson: Lesson, timeout_s: float, on_progress: Callable[[int, int], None]) -> LessonRun:
    """Run one notebook; `on_progress` gets the number of cells done and of all cells."""
    if not lesson.notebook.exists():
        return LessonRun(lesson, problem=f"it has not been built yet: run `course build {lesson.number}`")
    result, start, at = LessonRun(lesson), time.perf_counter(), 0
    notebook = nbformat.read(lesson.notebook, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None  # outputs that are there afterwards are this run's

    def begin(index: int) -> None:
        nonlocal at
        at = index
        on_progress(index, len(notebook.cells))

    try:
        execute(notebook, lesson.notebook.parent, reproducible=False, timeout_s=timeout_s, on_cell=begin)
    except CellTimeoutError:
        result.problem = f"a cell did not end within {timeout_s:g} s:\n\n{notebook.cells[at].source}"
    except CellExecutionError as problem:
        result.problem = str(problem)
    except (DeadKernelError, RuntimeError) as problem:
        result.problem = f"{type(problem).__name__}: {problem}, in this cell:\n\n{notebook.cells[at].source}"
    result.seconds = time.perf_counter() - start
    result.checks, result.notebook = read_checks(notebook), notebook
    return result


def read_checks(notebook: NotebookNode) -> list[ComparedRow]:
    """Every comparison with a tolerance that a notebook's stored outputs hold."""
    return [check for cell in notebook.cells for check in _checks_of(cell)]


def _checks_of(cell: NotebookNode) -> list[ComparedRow]:
    rows = [
        row
        for output in cell.get("outputs", [])
        for row in output.get("metadata", {}).get("course", {}).get("checks", [])
    ]
    return [ComparedRow(row["name"], row["ratio"], row["ok"]) for row in rows if row["tolerance"] is not None]


def table(results: Sequence[LessonRun]) -> Table:
    """One row per lesson: seconds, checks made, and the worst ratio of measurement to prediction."""
    headings = ("lesson", "", "seconds", "checks", "worst\nratio", "of")
    shown = Table(*headings, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in shown.columns[2:5]:
        column.justify = "right"
    for column in shown.columns[:5]:  # in a narrow window only the last column becomes narrow: it may wrap
        column.no_wrap = True
    for result in results:
        worst = result.worst
        ratio = "" if worst is None else "∞" if worst.ratio is None else f"{worst.ratio:.4g}"
        verdict = Text("failed", "red") if result.problem else Text("passed", "green")
        counts = (f"{result.seconds:.1f}", str(len(result.checks)), ratio, worst.name if worst else "")
        shown.add_row(result.lesson.name, verdict, *counts)
    return shown


def origins(name: str, notebook: NotebookNode) -> Table:
    """One row per table of a lesson: its cell, and the functions and records that its two columns come from.

    A table whose numbers could know of each other says why; the worst ratio is that of the table's cell.
    """
    shown = Table("cell", "worst ratio", "predicted from", "measured from", title=name, box=SIMPLE_HEAD, pad_edge=False)
    number = {
        index: n for n, index in enumerate(i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code")
    }
    for index, of_cell in tables(notebook).items():
        worst = max(_checks_of(notebook.cells[index]), key=lambda check: check.deviation, default=None)
        ratio = "not checked" if worst is None else "∞" if worst.ratio is None else f"{worst.ratio:.4g}"
        for rows in of_cell:
            problem = next((row.problem for row in rows if row.problem), "")
            sides = (_names(rows, "predicted"), Text(problem, "red") if problem else _names(rows, "measured"))
            shown.add_row(str(number[index]), ratio, *sides)
    return shown


def _names(rows: Sequence[Row], side: str) -> str:
    """The functions and records of one column, without their arguments."""
    calls = [origin.split("(")[0] for row in rows for origin in getattr(row, side)]
    named = dict.fromkeys(call for call in calls if all(part.isidentifier() for part in call.split(".")))
    return ", ".join(named) or ("made in the cell" if calls else "numbers, typed in")
