"""All files that are written about a graded batch, and the summary that is printed at its end.

    grades.csv                             a row for each student, for people and spreadsheets
    feedback/STUDENT.md, .html             for the student
    gradebooks/canvas.csv, moodle.csv      to import
    gradebooks/canvas_feedback.zip, …      to upload: each student's page
    gradebooks/gradescope/STUDENT/results.json

All files are made from results alone, so they can be made again without grading.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from nbformat import NotebookNode
from rich.console import Console
from rich.table import Table
from rich.text import Text

from course_tools.author.lab_source import questions
from course_tools.grading.files import write_text
from course_tools.grading.intake.rebuild import NOT_ANSWERED
from course_tools.grading.report import words
from course_tools.grading.report.adjustments import MANUAL
from course_tools.grading.report.feedback import as_html, as_markdown
from course_tools.grading.report.gradebooks import write_gradebooks
from course_tools.grading.report.results import GRADED, PASSED, Result

_BINS = 10


def write_reports(results: Sequence[Result], out_dir: Path, key: NotebookNode) -> None:
    """Write all reports below `out_dir`; files of an earlier run are replaced.

    Args:
        results: the results of grading, with adjustments put on or not.
        out_dir: the folder that holds `results/`.
        key: the whole lab.
    """
    words.write_csv(out_dir / "grades.csv", grade_rows(results, key), excel=True)
    for result in results:
        write_text(out_dir / "feedback" / f"{result.student}.md", as_markdown(result, key))
        write_text(out_dir / "feedback" / f"{result.student}.html", as_html(result, key))
    write_gradebooks(results, out_dir / "gradebooks", key)


def grade_rows(results: Sequence[Result], key: NotebookNode) -> list[list[str | float]]:
    """The rows of grades.csv, header first. Points of the questions less the penalty are the total.

    The columns `manual` and `penalty` are there when someone has points in them. Where the grader failed there are no
    numbers, because there are none yet.
    """
    names = question_names(results, key)
    penalty = ["penalty"] if any(result.penalty for result in results) else []
    rows: list[list[str | float]] = [["student", "name", *names, *penalty, "total", "out_of", "status", "notes"]]
    for result in results:
        known = result.decided
        points = [sum(check.points for check in result.of(name)) if known else "" for name in names]
        taken = [-result.penalty for _ in penalty]
        notes = "; ".join([*result.notes, *result.comment.splitlines()])
        totals = [result.points if known else "", result.out_of, result.status, notes]
        rows.append([result.student, result.name, *points, *taken, *totals])
    return rows


def question_names(results: Sequence[Result], key: NotebookNode) -> list[str]:
    """The lab's questions, then any that only results know; points without a question come last."""
    known = [question.name for question in questions(key)]
    found = dict.fromkeys([*known, *(name for result in results for name in result.questions)])
    return sorted(found, key=lambda name: name == MANUAL)


def print_summary(results: Sequence[Result], key: NotebookNode, console: Console) -> None:
    """Print a histogram of the points, the questions that lost most, and the submissions to look at by hand."""
    known = [result for result in results if result.decided]
    if known:
        worth = max(result.out_of for result in known)
        console.print(_histogram([result.points for result in known], worth))
        console.print(_losses(known, key))
    if by_hand := list(_to_look_at(results)):
        table = Table("look at these by hand", "status", "why", title_justify="left")
        for student, status, why in by_hand:
            table.add_row(Text(student), Text(status, "yellow"), Text(why))
        console.print(table)
    if exposed := sum(not result.isolated for result in results):
        console.print(f"NOT ISOLATED: {exposed} of {len(results)} ran without a sandbox", style="bold red")


def _histogram(points: Sequence[float], worth: float) -> Table:
    """The number of students in each tenth of the lab's points."""
    counts = [0] * _BINS
    for value in points:
        counts[min(_BINS - 1, max(0, int(_BINS * value / worth)))] += 1 if worth else 0
    middle = statistics.median(points)
    table = Table("points", "", "submissions", title=f"{len(points)} graded, median {words.number(middle)}", box=None)
    table.columns[0].justify = table.columns[2].justify = "right"
    for step, count in reversed(list(enumerate(counts))):
        low, high = worth * step / _BINS, worth * (step + 1) / _BINS
        bar = "█" * max(round(30 * count / max(counts)), 1 if count else 0)
        table.add_row(f"{words.number(low)}–{words.number(high)}", Text(bar, "cyan"), str(count) if count else "")
    return table


def _losses(results: Sequence[Result], key: NotebookNode) -> Table:
    """The questions, the hardest first: mean share of points, and the check that took most of them."""
    table = Table("lost most", "mean", "the check that most failed", box=None)
    titles = {question.name: question.title for question in questions(key)}
    rows: list[tuple[float, str, str]] = []
    for name in question_names(results, key):
        checks = [check for result in results for check in result.of(name) if check.out_of]
        if not checks:
            continue
        share = sum(check.points for check in checks) / sum(check.out_of for check in checks)
        lost: dict[str, int] = {}
        for check in checks:
            lost[check.check] = lost.get(check.check, 0) + (check.points < check.out_of)
        worst = max(lost, key=lambda name: lost[name])
        rows.append((share, titles.get(name, name), f"{worst} ({lost[worst]})" if lost[worst] else ""))
    for share, title, worst in sorted(rows):
        table.add_row(Text(title), f"{share:.0%}", Text(worst))
    return table


def _to_look_at(results: Sequence[Result]) -> Iterator[tuple[str, str, str]]:
    """Submissions whose points may not be those that the answers deserve.

    A question left out deserves its points, and a submission with all points has lost none to an oddity.
    """
    for result in results:
        if result.status == GRADED and all(check.outcome == PASSED for check in result.checks):
            continue
        odd = [note for note in result.notes if not note.endswith(NOT_ANSWERED) and words.JUDGED_AGAIN not in note]
        notes = [words.one_line(note) for note in odd]
        if result.status != GRADED or notes:
            why = "; ".join(notes)
            yield result.student, result.status, why if len(why) <= 160 else why[:159] + "…"
