"""The feedback of a whole batch as one zip, for Moodle or Canvas: the name of each page says whose it is.

    Moodle   Ada Lovelace_4711_assignsubmission_file/lab01_topic_feedback.html
             (mod/assign/feedback/file/importziplib.php, is_valid_filename_for_import)
    Canvas   lovelaceada_4711_98765_lab01_topic_feedback.ipynb
             (app/models/abstract_assignment.rb, infer_comment_context_from_filename)

Both numbers come from the names in the download: the student's, and Canvas' own for the file that was handed in. A
student whose submission came without them is in no zip. Canvas shows a page under the name of the file that was handed
in, a notebook's: so there the page is a notebook, with nothing to run.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_tools.grading.files import write_bytes
from course_tools.grading.intake.submissions import canvas_attachment
from course_tools.grading.report import words
from course_tools.grading.report.feedback import as_html, as_markdown
from course_tools.grading.report.results import Result

_MOODLE, _CANVAS = "moodle_feedback.zip", "canvas_feedback.zip"


def write_feedback_zips(results: Sequence[Result], folder: Path, key: NotebookNode) -> None:
    """Write `moodle_feedback.zip` and `canvas_feedback.zip` to `folder`, each if a page belongs in it."""
    pages: dict[str, dict[str, str]] = {_MOODLE: {}, _CANVAS: {}}
    for result in results:
        if result.gradebook_id:
            archive, name = _place(result)
            pages[archive][name] = as_html(result, key) if archive == _MOODLE else _as_notebook(result, key)
    for archive, content in pages.items():
        if content:
            write_bytes(folder / archive, _zipped(content))
        else:
            (folder / archive).unlink(missing_ok=True)  # of students who have no points any more


def _place(result: Result) -> tuple[str, str]:
    """The zip for a student's page, and the page's name there.

    Both systems part a name at its underscores, and Canvas takes the first part that is a number for the student's. So
    what a student is called holds no underscore and is no number.
    """
    name = re.sub(r"[\\/_]+", " ", words.one_line(result.name)).strip()
    student = f"{'student ' if name.isdigit() else ''}{name}_{result.gradebook_id}"
    if attachment := canvas_attachment(result.source):
        return _CANVAS, f"{student}_{attachment}_{result.lab}_feedback.ipynb"
    return _MOODLE, f"{student}_assignsubmission_file/{result.lab}_feedback.html"


def _as_notebook(result: Result, key: NotebookNode) -> str:
    cell = nbformat.v4.new_markdown_cell(as_markdown(result, key), id="feedback")  # an id of chance changes the bytes
    return nbformat.writes(nbformat.v4.new_notebook(cells=[cell]))


def _zipped(pages: Mapping[str, str]) -> bytes:
    """A zip, the same bytes for the same pages: no dates."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, page in pages.items():
            text = page.encode(errors="backslashreplace")
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return content.getvalue()
