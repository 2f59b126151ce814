"""Late days, manual points and comments, from one small CSV file; put on top of results, never into them.

    student,question,points,days_late,comment
    ada-lovelace,q2,+3,,The check was too strict here.
    grace-hopper,,,2,
    alan-turing,,-5,,Handed in as a screenshot at first.

`points` are added to those of the checks. A day late costs a percentage of the lab's points. The file's place and the
cost of a day are kept beside the results, so that every later run puts the same adjustments on them.
INSTRUCTORS.md explains the file.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from course_tools.grading.files import write_text
from course_tools.grading.report import words
from course_tools.grading.report.results import PASSED, CheckResult, Result

COLUMNS = ("student", "question", "points", "days_late", "comment")
MANUAL = "manual"
"""The question of points for which a row names none."""

KEPT = "adjustments.json"
"""A file beside `results/`: the relative path of the file of adjustments, and the cost of a day late."""


@dataclass(frozen=True)
class Rules:
    """Rules for results: a file of adjustments, if there is one, and the percent of the lab that a day late costs."""

    file: Path | None = None
    late: float | None = None

    @classmethod
    def kept(cls, out: Path) -> Rules:
        """The rules that were put on the results in `out` last; empty ones if there are none.

        Raises:
            ValueError: the file that keeps them cannot be read.
        """
        path = out / KEPT
        if not path.exists():
            return cls()
        try:
            fields = json.loads(path.read_text("utf-8"))
            file = Path(os.path.normpath(out / fields["file"])) if fields["file"] else None
            return cls(file, fields["late"])
        except (ValueError, TypeError, KeyError) as problem:
            raise ValueError(f"{path} cannot be read ({problem}); delete it, give --adjust and --late again") from None

    def keep(self, out: Path) -> None:
        """Keep these rules for the next run."""
        try:
            file = os.path.relpath(self.file, out) if self.file else None
        except ValueError:  # another drive of Windows
            file = os.path.abspath(self.file) if self.file else None
        write_text(out / KEPT, json.dumps({"file": file, "late": self.late}) + "\n")


@dataclass(frozen=True)
class Adjustment:
    """One row: `question` may be empty (the lab as a whole); `points` and `days_late` are None where nothing stands."""

    line: int
    student: str
    question: str
    points: float | None
    days_late: float | None
    comment: str


def read_adjustments(path: Path) -> list[Adjustment]:
    """The rows of the file, comma- or semicolon-separated, as any spreadsheet writes it.

    Raises:
        ValueError: something in the file cannot be meant; all such lines are named at once.
    """
    try:
        text = path.read_text("utf-8-sig")
    except OSError as problem:
        raise ValueError(f"{path} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8; save it from the spreadsheet as 'CSV UTF-8'") from None
    head = text.split("\n", 1)[0]
    separator = ";" if head.count(";") > head.count(",") else ","
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    adjustments, complaints = list[Adjustment](), list[str]()
    try:
        names = _header(path, next(rows, []))
        for cells in rows:
            if not any(cell.strip() for cell in cells):
                continue
            try:
                adjustments.append(_row(rows.line_num, names, cells, decimal="," if separator == ";" else "."))
            except ValueError as problem:
                complaints.append(f"line {rows.line_num}: {problem}")
    except csv.Error as problem:
        complaints.append(f"line {rows.line_num}: {problem}")
    _refuse(path, complaints)
    return adjustments


def apply(
    results: Sequence[Result],
    adjustments: Sequence[Adjustment],
    *,
    late: float | None = None,
    source: str = "adjustments",
) -> list[Result]:
    """The results with every adjustment put on them, as new objects.

    Args:
        results: the results as the checks gave them; they stay as they are.
        adjustments: rows of the file.
        late: percent of the lab's points that a day costs; a part of a day counts as a day.
        source: the file's name, for complaints.

    Raises:
        ValueError: a row names no student of these, or a question that is not there, or days late without a rule;
            nothing is applied then, and all such lines are named.
    """
    if late is not None and not 0 <= late <= 100:
        raise ValueError(f"--late {late:g}: give the percent that a day costs, from 0 to 100")
    rows: dict[str, list[Adjustment]] = {}
    complaints = list[str]()
    for row in adjustments:
        try:
            result = _result_of(row, results)
            _check(row, result, late, rows.get(result.student, []))
            rows.setdefault(result.student, []).append(row)
        except ValueError as problem:
            complaints.append(f"line {row.line}: {problem}")
    _refuse(source, complaints)
    return [_adjusted(result, rows.get(result.student, []), late or 0.0) for result in results]


def _header(path: Path, cells: list[str]) -> list[str]:
    names = [cell.strip().lower().replace(" ", "_") for cell in cells]
    if unknown := [name for name in names if name not in COLUMNS]:
        raise ValueError(f"{path}, line 1: there is no column {unknown[0]!r}; the columns are {','.join(COLUMNS)}")
    if "student" not in names or len(set(names)) != len(names):
        raise ValueError(f"{path}, line 1: name each column once, student among them: {','.join(COLUMNS)}")
    return names


def _row(line: int, names: list[str], cells: list[str], *, decimal: str) -> Adjustment:
    if len(cells) > len(names):
        raise ValueError(f"{len(cells)} cells, but {len(names)} columns; put a comment that holds commas into quotes")
    given = dict(zip(names, (cell.strip() for cell in cells)))
    points = _number(given.get("points", ""), "points", decimal)
    days = _number(given.get("days_late", ""), "days_late", decimal)
    row = Adjustment(line, given["student"], given.get("question", ""), points, days, given.get("comment", ""))
    if not row.student:
        raise ValueError("no student")
    if points is None and days is None and not row.comment:
        raise ValueError(f"nothing is said about {row.student}: give points, days_late or a comment")
    if days is not None and days < 0:
        raise ValueError(f"days_late is {days:g}; it cannot be below 0")
    if days is not None and row.question:
        raise ValueError("days_late belongs to the whole lab; leave question empty")
    return row


def _number(text: str, column: str, decimal: str) -> float | None:
    if not text:
        return None
    try:
        number = float(text.replace(decimal, ".").replace("\N{MINUS SIGN}", "-").removeprefix("'"))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{column} is {text!r}, which is not a number")
    return number


def _result_of(row: Adjustment, results: Sequence[Result]) -> Result:
    """Find a row's result by the student's id, else by a name of one student alone, as it is or as in grades.csv."""
    wanted = unicodedata.normalize("NFC", row.student)
    found = [result for result in results if result.student == wanted]
    found = found or [result for result in results if wanted in (result.name, words.safe_cell(result.name))]
    if len(found) == 1:
        return found[0]
    ids = [result.student for result in found or results]
    close = ids if found else difflib.get_close_matches(row.student, ids, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise ValueError(f"{'more than one' if found else 'no'} student is called {row.student!r}{hint}")


def _check(row: Adjustment, result: Result, late: float | None, before: list[Adjustment]) -> None:
    if row.question and row.question not in result.questions:
        raise ValueError(f"there is no question {row.question!r}; there are {', '.join(result.questions)}")
    if row.days_late and late is None:
        raise ValueError(f"{row.student} is late, but what does a day cost? Add --late PERCENT (0 for nothing)")
    if row.days_late is not None and any(other.days_late is not None for other in before):
        raise ValueError(f"a second line says how late {row.student} is")


def _adjusted(result: Result, rows: list[Adjustment], late: float) -> Result:
    checks = [
        CheckResult(
            question=row.question or MANUAL,
            check=f"{row.question or MANUAL}-by-hand-{number}",
            points=row.points,
            out_of=0.0,
            hidden=False,
            outcome=PASSED,
            message=row.comment,
        )
        for number, row in enumerate(rows, 1)
        if row.points is not None
    ]
    days = float(math.ceil(max((row.days_late or 0.0 for row in rows), default=0.0)))
    comments = [row.comment for row in rows if row.comment and row.points is None]
    changed = replace(result, checks=(*result.checks, *checks), late_days=days, comment="\n".join(comments))
    return replace(changed, penalty=min(changed.points, days * late / 100 * result.out_of))


def _refuse(source: Path | str, complaints: list[str]) -> None:
    if complaints:
        raise ValueError(f"{source}: nothing was changed, because of\n" + "\n".join(_indented(complaints)))


def _indented(lines: list[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
