"""`course feedback`: write every report again from the results that are there, with late days and manual points.

The adjustments are kept beside the results, and `course grade` puts them on as well.

INSTRUCTORS.md explains the command.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nbformat import NotebookNode
from rich.console import Console

from course_tools.author.lab_source import questions, read_lab
from course_tools.grading.report.adjustments import Rules, apply, read_adjustments
from course_tools.grading.report.reports import print_summary, write_reports
from course_tools.grading.report.results import Result, load_all
from course_tools.labs import find_labs


def render_feedback(
    root: Path, out: Path, console: Console, *, adjust: Path | None = None, late: float | None = None
) -> list[Result]:
    """Read `out/results`, put the adjustments on, write the reports. The results stay as they are.

    Args:
        root: the checkout that holds the lab.
        out: the folder that `course grade` wrote.
        console: the console for the summary.
        adjust: a CSV of late days, points and comments; default: the one of the last time.
        late: percent of the lab that a day costs; default: as the last time.

    Raises:
        ValueError: there are no results, they are of several labs, or an adjustment cannot be meant.
    """
    results = load_all(out)
    if not results:
        raise ValueError(f"{out} holds no results; name the folder that `course grade` wrote (it holds results/)")
    key = read_lab(replace(find_labs(root, [results[0].lab])[0], term=results[0].term))
    kept = Rules.kept(out)
    rules = Rules(adjust or kept.file, kept.late if late is None else late)
    adjusted = report(results, out, key, console, rules)
    if rules != kept:
        rules.keep(out)
    console.print(f"✓ {len(adjusted)} reports in {out}", style="green", markup=False)
    return adjusted


def report(results: list[Result], out: Path, key: NotebookNode, console: Console, rules: Rules) -> list[Result]:
    """Put adjustments on results, write every report, print the summary, and return the adjusted results.

    Raises:
        ValueError: an adjustment cannot be meant; nothing is written then.
    """
    rows = read_adjustments(rules.file) if rules.file else []
    adjusted = apply(results, rows, late=rules.late, source=str(rules.file))
    write_reports(adjusted, out, key)
    print_summary(adjusted, key, console)
    if changed := _changed(results, key):
        text = f"{changed} of these were graded with other checks or points than the lab has now; grade them again"
        console.print(text, style="yellow")
    if rules.file:
        cost = "" if rules.late is None else f"; each day late costs {rules.late:g} %"
        console.print(f"with {len(rows)} adjustments from {rules.file}{cost}", markup=False)
    return adjusted


def _changed(results: list[Result], key: NotebookNode) -> int:
    """The number of results that have other checks than the lab has today."""
    now = {(check.grade_id, check.points) for question in questions(key) for check in question.checks}
    return sum({(check.check, check.out_of) for check in result.checks} != now for result in results)
