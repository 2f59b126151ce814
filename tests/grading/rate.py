"""Measure how many submissions of a lab are graded in an hour, on this machine and now.

    time python -m tests.grading.rate lab02 --students 12 -j 2

Every third student leaves one question unanswered; the others hand in the solution. With COURSE_GRADING_PLAIN=1 in the
environment they run without bubblewrap. On a machine that does other work, `user` and `sys` of `time` say more than
the clock.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import nbformat

from course_tools.author.lab_source import grade_id_of, is_answer, read_lab, student_version
from course_tools.grading.grade import grade_batch
from course_tools.grading.intake.submissions import Submission
from course_tools.grading.sandbox import processes
from course_tools.grading.sandbox.limits import Limits
from course_tools.labs import find_labs
from course_tools.lessons import course_root


def main() -> None:
    """Grade a class and print the rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab")
    parser.add_argument("--students", type=int, default=12)
    parser.add_argument("-j", "--jobs", type=int, default=2)
    given = parser.parse_args()
    key = read_lab(find_labs(course_root(), [given.lab])[0])
    stubs = {grade_id_of(cell): cell.source for cell in student_version(key).cells if is_answer(cell)}
    submissions = []
    for number in range(given.students):
        book = student_version(key)
        left_out = list(stubs)[number // 3 % len(stubs)] if number % 3 == 2 else ""
        for cell, solved in zip(book.cells, key.cells, strict=True):
            if is_answer(cell) and grade_id_of(cell) != left_out:
                cell.source = solved.source
        name = f"s{number}"
        submissions.append(Submission(name, name, f"{name}/lab.ipynb", nbformat.writes(book).encode()))
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = grade_batch(nbformat.writes(key), submissions, Limits(), Path(folder), jobs=given.jobs)
    took_s = time.monotonic() - start
    assert all(result.decided for result in results), [result.notes for result in results]
    print(f"{given.lab}, {processes.best_isolation()}: {[result.points for result in results]}")
    print(f"{took_s:.1f} s, {3600 * given.students / took_s:.0f} submissions an hour with {given.jobs} at a time")


if __name__ == "__main__":
    main()
