"""Words and cells that every report shares: plain words for statuses, text from students made harmless."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from nbformat import NotebookNode

from course_tools.grading.files import write_text
from course_tools.grading.report.results import (
    AGAIN,
    DIED,
    FAILED,
    GRADED,
    NOT_GRADED,
    NOT_RUN,
    TAMPERED,
    TIMEOUT,
    UNREADABLE,
    WRONG_LAB,
)

STATUS = {
    GRADED: "Your notebook ran to its end.",
    UNREADABLE: "Your file could not be opened as a notebook, so nothing in it could be graded.",
    WRONG_LAB: "Your notebook does not belong to this lab, so nothing in it could be graded.",
    NOT_GRADED: "Your notebook could not be graded yet, and that is not your fault. Your instructor sees this, too.",
    AGAIN: "Your notebook could not be graded to its end, because the machine was too busy. That is not your fault: "
    "it will be graded again.",
    TAMPERED: "Something in your notebook changed how its checks run. Your instructor will look at it.",
    "time limit": "Your notebook used up its time. What was checked until then keeps its points.",
    "memory limit": "Your notebook used up its memory. What was checked until then keeps its points.",
}
"""The meaning of each status, in words for the student."""

OUTCOME = {
    FAILED: "failed",
    TIMEOUT: "did not end in time",
    DIED: "ended the whole Python process",
    NOT_RUN: "was not reached",
    TAMPERED: "does not count: the check was tampered with",
}

JUDGED_AGAIN = "judged again with a right version of"
"""Words of the note about a question that an earlier one's fault had cost."""

TOO_BUSY = "the machine was too busy to grade this: `course grade --resume` tries again"
"""Words of the note about a machine that was too busy, for the instructor."""

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_FORMULA = "=+-@\uff1d\uff0b\uff0d\uff20"  # the last four: full-width, which some spreadsheets read as well
_KEPT = "\n\u200c\u200d"  # the joiners belong to the spelling of Persian and Indic names
_LIST = re.compile(r"^(\d*)([-+=.)])")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>#|&~:!@$])")


def status_words(status: str) -> str:
    """The status as a sentence."""
    limit = f"Your notebook was stopped at its {status}. What was checked until then keeps its points."
    return STATUS.get(status, limit if status.endswith("limit") else f"{status[:1].upper()}{status[1:]}.")


def plain(text: str) -> str:
    """Text without escape sequences, control characters, and characters that turn the writing direction around."""
    text = _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n").expandtabs(4)
    return "".join(char for char in text if char in _KEPT or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co"})


def one_line(text: str) -> str:
    """Plain text on a single line."""
    return " ".join(plain(text.replace("\t", " ")).split())


def markdown(text: str) -> str:
    """One line that Markdown shows as it is, also at the beginning of a paragraph."""
    return _LIST.sub(r"\1\\\2", _MARKDOWN.sub(r"\\\1", one_line(text)))


def number(value: float) -> str:
    """Points, without superfluous digits."""
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def lab_title(key: NotebookNode) -> str:
    """The lab's heading, as in `Lab 01 · Block formats and long sums`."""
    first = next((cell.source for cell in key.cells if cell.cell_type == "markdown"), "")
    match = re.search(r"^# (.+)$", first, re.M)
    return match[1].strip() if match else key.metadata.get("course", {}).get("lab", "Lab")


def safe_cell(value: str | float) -> str | float:
    """A cell that no spreadsheet takes for a formula; numbers stay numbers."""
    if isinstance(value, str):
        text = one_line(value)
        return f"'{text}" if text[:1] and text[0] in _FORMULA else text
    return float(number(value)) if value % 1 else int(value)


def write_csv(path: Path, rows: Iterable[Sequence[str | float]], *, excel: bool = False) -> None:
    """Write rows, each text in quotes and harmless.

    Args:
        path: the file.
        rows: header first.
        excel: begin with a byte order mark; without one Excel does not read UTF-8.
    """
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC).writerows([safe_cell(cell) for cell in row] for row in rows)
    write_text(path, text.getvalue(), encoding="utf-8-sig" if excel else "utf-8")
