"""Results as grading would find them, for tests of what is made of them."""

from __future__ import annotations

from course_tools.grading.report.results import FAILED, GRADED, NOT_RUN, PASSED, CheckResult, Result

WORTH = {
    "q1-values": 20.0,
    "q1-hidden": 20.0,
    "q2-values": 20.0,
    "q2-hidden": 20.0,
    "q3-values": 10.0,
    "q3-hidden": 10.0,
}
"""Points of the tiny lab's checks."""


def result(
    student: str = "ada",
    name: str = "",
    *,
    failed: dict[str, str] | None = None,
    status: str = GRADED,
    outcome: str = FAILED,
    **fields,
) -> Result:
    """A result of the tiny lab.

    Args:
        student, name: id, and the name in the gradebook (default: the id, capitalised).
        failed: check → what it said.
        status: of the submission; `not graded` has no points.
        outcome: of each failed check.
        fields: more of `Result`.
    """
    lost = WORTH if status == "not graded" else failed or {}
    rows = tuple(
        CheckResult(
            question=check.split("-")[0],
            check=check,
            points=0.0 if check in lost else worth,
            out_of=worth,
            hidden=check.endswith("hidden"),
            outcome=(NOT_RUN if status == "not graded" else outcome) if check in lost else PASSED,
            message=(failed or {}).get(check, ""),
        )
        for check, worth in WORTH.items()
    )
    name = name or student.title()
    return Result("lab90_tiny", student, name, f"{student}/lab90_tiny.ipynb", "d", status, rows, **fields)
