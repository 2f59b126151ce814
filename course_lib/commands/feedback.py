"""`course feedback`: write every report again from the results that are there, with late days and manual points.

No lesson opens this module; INSTRUCTORS.md explains the command.
"""

from __future__ import annotations

from pathlib import Path

from nbformat import NotebookNode
from rich.console import Console

from course_lib.build.lab_source import questions, read_lab
from course_lib.build.labs import find_labs
from course_lib.grading.adjustments import apply, read_adjustments
from course_lib.grading.reports import print_summary, write_reports
from course_lib.grading.results import Result, load_all


def render_feedback(
    root: Path, out: Path, console: Console, *, adjust: Path | None = None, late: float | None = None
) -> list[Result]:
    """Read `out/results`, put the adjustments on, write the reports. The results stay as they are.

    Args:
        root: the checkout that holds the lab.
        out: the folder that `course grade` wrote.
        console: where the summary goes.
        adjust: a CSV of late days, points and comments.
        late: percent of the lab that a day costs.

    Raises:
        ValueError: there are no results, they are of several labs, or an adjustment cannot be meant.
    """
    results = load_all(out)
    if not results:
        raise ValueError(f"{out} holds no results; name the folder that `course grade` wrote (it holds results/)")
    lab = results[0].lab
    key = read_lab(find_labs(root, [lab])[0])
    if changed := _changed(results, key):
        text = f"{lab} has other checks or points now than when {changed} of these were graded; grade them again"
        console.print(text, style="yellow")
    rows = read_adjustments(adjust) if adjust else []
    adjusted = apply(results, rows, late=late, source=str(adjust))
    write_reports(adjusted, out, key)
    print_summary(adjusted, key, console)
    console.print(f"✓ {len(adjusted)} reports in {out}, {len(rows)} adjustments", style="green", markup=False)
    return adjusted


def _changed(results: list[Result], key: NotebookNode) -> int:
    """How many results know other checks than the lab has today."""
    now = {(check.grade_id, check.points) for question in questions(key) for check in question.checks}
    return sum({(check.check, check.out_of) for check in result.checks} != now for result in results)
