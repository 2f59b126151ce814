"""The formats that gradebooks read: Gradescope's results.json, and the import files of Canvas and Moodle.

A submission at which the grader itself failed has no points yet. Such a submission is left out, so that no gradebook
takes it for zero.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode

from course_tools.grading.files import write_text
from course_tools.grading.report import words
from course_tools.grading.report.feedback import QuestionFeedback, feedback_questions, shown_notes
from course_tools.grading.report.feedback_zips import write_feedback_zips
from course_tools.grading.report.results import PASSED, Result, total


def write_gradebooks(results: Sequence[Result], folder: Path, key: NotebookNode) -> None:
    """Write `canvas.csv`, `moodle.csv`, their zips of feedback and `gradescope/STUDENT/results.json` to `folder`."""
    known = [result for result in results if result.decided]
    shutil.rmtree(folder / "gradescope", ignore_errors=True)  # a student without points any more keeps no file
    words.write_csv(folder / "canvas.csv", canvas_rows(known, key))
    words.write_csv(folder / "moodle.csv", moodle_rows(known, key))
    write_feedback_zips(known, folder, key)
    for result in known:
        text = json.dumps(gradescope(result, key), indent=1, ensure_ascii=False)
        write_text(folder / "gradescope" / result.student / "results.json", text + "\n")


def canvas_rows(results: Sequence[Result], key: NotebookNode) -> list[list[str | float]]:
    """Canvas' gradebook import: students by Canvas' number from the download's file names, else by login.

    A column without Canvas' own number in its title is matched by name, or chosen in Canvas at the import.
    """
    number, _, topic = words.lab_title(key).partition(" · ")
    header = ["Student", "ID", "SIS Login ID", "Section", f"{number} ({topic})" if topic else number]
    rows: list[list[str | float]] = [[*header], ["Points Possible", "", "", "", total(results)]]
    for result in results:
        login = "" if result.gradebook_id else result.name
        rows.append([result.name, result.gradebook_id, login, "", result.points])
    return rows


def moodle_rows(results: Sequence[Result], key: NotebookNode) -> list[list[str | float]]:
    """Moodle's offline grading worksheet; its importer needs Identifier, Grade and Last modified (grade).

    The number in a download's file names is a participant's, of that assignment, and not the person's `ID number`. So
    that column is empty then: as a key, the number would find no one, or another person.
    """
    header = ["Identifier", "Full name", "ID number", "Grade", "Maximum Grade", "Last modified (grade)"]
    rows: list[list[str | float]] = [[*header, "Feedback comments"]]
    for result in results:
        number = result.gradebook_id
        row: list[str | float] = [f"Participant {number}" if number else "", result.name, "" if number else result.name]
        rows.append([*row, result.points, result.out_of, "", _in_one_line(result, key)])
    return rows


def gradescope(result: Result, key: NotebookNode) -> dict:
    """The content of results.json, as Gradescope's autograder specification has it.

    Points of hidden tests become visible only when grades are published: while students may hand in again, the points
    would be a hint.
    """
    tests = [test for question in feedback_questions(result, key) for test in _tests(question, result)]
    late = f"\n\nDays late: {words.number(result.late_days)}. That costs {words.number(result.penalty)} points."
    notes = "".join(f"\n\n- {note}" for note in shown_notes(result))
    comment = f"\n\n{words.plain(result.comment)}" if result.comment else ""
    return {
        "score": round(result.points, 4),
        "output": words.status_words(result.status) + notes + (late if result.late_days else "") + comment,
        "output_format": "text",
        "stdout_visibility": "hidden",
        "execution_time": round(result.seconds),
        "tests": tests,
    }


def _tests(question: QuestionFeedback, result: Result) -> list[dict]:
    messages = {lost.name: lost for lost in question.failed}
    tests = []
    for check in result.of(question.name):
        lost = messages.get(check.check)
        test = {
            "name": f"{question.title}: {check.check}",
            "name_format": "text",
            "score": check.points,
            "max_score": check.out_of,
            "status": "passed" if check.outcome == PASSED else "failed",
            "visibility": "after_published" if check.hidden else "visible",
        }
        if lost:
            test |= {"output": f"{lost.outcome}\n{lost.message}".strip(), "output_format": "text"}
        elif not check.hidden and check.message:
            test |= {"output": words.plain(check.message), "output_format": "text"}
        tests.append(test)
    return tests


def _in_one_line(result: Result, key: NotebookNode) -> str:
    """Points in a sentence, for a cell of feedback."""
    parts = [f"{words.number(result.points)} of {words.number(result.out_of)} points."]
    for question in feedback_questions(result, key):
        of = f" of {words.number(question.out_of)}" if question.out_of else ""
        parts.append(f"{question.title}: {words.number(question.points)}{of}.")
    if result.late_days:
        parts.append(f"Days late: {words.number(result.late_days)}, less {words.number(result.penalty)} points.")
    parts += [words.status_words(result.status), result.comment]
    return re.sub(r"[<>]", " ", words.one_line(" ".join(parts)))  # Moodle shows feedback as HTML
