"""`course grade --similar`: the answers of a batch that resemble each other, by copydetect; a table and two files.

Only answers are compared, and code that the lab hands out (stubs, given cells) does not count. copydetect looks at
fingerprints of token sequences (winnowing, as MOSS does), so that other names, comments and line breaks change nothing.

INSTRUCTORS.md says how to read the numbers.
"""

from __future__ import annotations

import html
import io
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from rich.console import Console
from rich.table import Table
from rich.text import Text

from course_tools.author.lab_source import is_answer, read_lab, student_version
from course_tools.grading.files import write_text
from course_tools.grading.intake.rebuild import Unreadable, WrongLab, rebuild
from course_tools.grading.intake.submissions import Submission, find_submissions
from course_tools.grading.report import words
from course_tools.labs import Lab

_TOKENS = 20  # in a row that must agree; fewer are idioms
_WINDOW = 6  # so that every agreement over _TOKENS + _WINDOW - 1 is found
_IN_TABLE, _SIDE_BY_SIDE = 0.5, 20
NO_PROOF = (
    "Similarity is no proof. Two honest answers to a small question look alike, more so where the contract or a lesson "
    "leaves one way; and a copy that was rewritten looks different. Compare with the batch's median, read both "
    "answers, and ask."
)


@dataclass(frozen=True)
class Pair:
    """Two students, and the share of each one's answers that is in the other's.

    Attributes:
        first, second: the students.
        shares: share of the tokens of each that agree; 1 is all of them.
        marked: the answers as HTML, the parts that agree marked.
    """

    first: str
    second: str
    shares: tuple[float, float]
    marked: tuple[str, str]


def report_similar(lab: Lab, where: Path, out: Path, largest_bytes: int, console: Console) -> None:
    """Compare every submission with every other, print the pairs that resemble each other most, and write all of them.

    Args:
        lab: the lab, with its source.
        where: folder or zip of submissions.
        out: gets `similar.csv`, all pairs, and `similar.html`, the first ones side by side.
        largest_bytes: limit on the size of one submission.
        console: where to print.

    Raises:
        ValueError: copydetect is not installed, or there are no submissions.
    """
    key = read_lab(lab)
    answers, left_out = answers_of(key, find_submissions(where, lab.name, largest_bytes=largest_bytes))
    pairs = similar_pairs(answers, _given(key))
    shares = [max(pair.shares) for pair in pairs]
    median = statistics.median(shares) if shares else 0.0
    rows: list[list[str | float]] = [["first", "second", "percent of the first", "percent of the second"]]
    rows += [[pair.first, pair.second, *(round(100 * share, 1) for share in pair.shares)] for pair in pairs]
    words.write_csv(out / "similar.csv", rows, excel=True)
    write_text(out / "similar.html", _as_html(lab.name, pairs[:_SIDE_BY_SIDE], median))
    table = Table("similar", "", "of the first", "of the second", title_justify="left")
    for pair in pairs[:_SIDE_BY_SIDE]:
        if max(pair.shares) >= _IN_TABLE:
            table.add_row(Text(pair.first), Text(pair.second), *(f"{share:.0%}" for share in pair.shares))
    console.print(table if table.row_count else f"no two share {_IN_TABLE:.0%} of their answers")
    console.print(f"{len(pairs)} pairs, median {median:.0%}; all of them in {out / 'similar.csv'}", markup=False)
    for student, why in left_out.items():
        console.print(f"{student}: not compared, {why}", markup=False)
    console.print(NO_PROOF, style="bold", markup=False)


def answers_of(key: NotebookNode, submissions: Sequence[Submission]) -> tuple[dict[str, str], dict[str, str]]:
    """Student → code of the answers and of the own cells that they need; student → the reason if there is none.

    Args:
        key: the whole lab.
        submissions: the submissions of a batch.
    """
    found: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for submission in submissions:
        try:
            if submission.problem:
                raise Unreadable(submission.problem)
            cells = rebuild(key, submission.data).notebook.cells
        except (Unreadable, WrongLab) as problem:
            left_out[submission.student] = str(problem)
            continue
        about = ((cell, cell.metadata.get("course", {})) for cell in cells if cell.cell_type == "code")
        own = [cell.source for cell, course in about if course.get("answered") or course.get("extra")]
        if own:
            found[submission.student] = "\n\n\n".join(own)
        else:
            left_out[submission.student] = "nothing was answered"
    return found, left_out


def similar_pairs(answers: dict[str, str], given: str) -> list[Pair]:
    """Every two students, those who resemble each other most first.

    Args:
        answers: student → code.
        given: code that the lab hands out, which does not count.

    Raises:
        ValueError: copydetect is not installed.
    """
    try:
        from copydetect import compare_files
        from copydetect.utils import highlight_overlap
    except ImportError:
        raise ValueError("--similar needs copydetect: pip install 'bigger-than-one-gpu[similar]'") from None
    everybodys = _fingerprint(given, window=1).hashes
    prints = {student: _fingerprint(code, window=_WINDOW, without=everybodys) for student, code in answers.items()}
    pairs = []
    for first, second in itertools.combinations(sorted(prints), 2):
        both = (prints[first], prints[second])
        _, shares, slices = compare_files(*both)
        texts = [
            highlight_overlap(one.raw_code, where, "<mark>", "</mark>", escape_html=True)[0]
            if len(where)
            else html.escape(one.raw_code)
            for one, where in zip(both, slices)
        ]
        pairs.append(Pair(first, second, (float(shares[0]), float(shares[1])), (texts[0], texts[1])))
    return sorted(pairs, key=lambda pair: max(pair.shares), reverse=True)


def _fingerprint(code: str, *, window: int, without: frozenset[int] | set[int] = frozenset()) -> Any:
    """copydetect's fingerprint; `without` is taken out here, as copydetect's own way wants each hash to occur once."""
    from copydetect import CodeFingerprint
    from copydetect.utils import get_token_coverage

    found = CodeFingerprint("answers.py", _TOKENS, window, language="python", fp=io.StringIO(code))
    found.hashes = {each for each in found.hashes if each not in without}
    found.hash_idx = {each: places for each, places in found.hash_idx.items() if each in found.hashes}
    found.token_coverage = get_token_coverage(found.hash_idx, _TOKENS, len(found.filtered_code))
    return found


def _given(key: NotebookNode) -> str:
    """All code that students get, stubs included."""
    cells = [cell for cell in key.cells if cell.cell_type == "code" and not is_answer(cell)]
    cells += [cell for cell in student_version(key).cells if cell.cell_type == "code" and is_answer(cell)]
    return "\n\n\n".join(cell.source for cell in cells)


def _as_html(lab: str, pairs: Sequence[Pair], median: float) -> str:
    """A page without scripts: the words first, then each pair side by side."""
    parts = [
        f"<h2>{html.escape(pair.first)} · {html.escape(pair.second)}</h2>"
        f"<p>{pair.shares[0]:.0%} of the first, {pair.shares[1]:.0%} of the second</p>"
        f"<div><pre>{pair.marked[0]}</pre><pre>{pair.marked[1]}</pre></div>"
        for pair in pairs
    ]
    style = "body{font:16px/1.4 system-ui;margin:2em}div{display:grid;grid-template-columns:1fr 1fr;gap:1em}"
    style += "pre{overflow:auto;padding:1em;border:1px solid #ccc;font-size:13px}mark{background:#ffe08a}"
    return (
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Similar answers to {html.escape(lab)}</title>'
        f"<style>{style}</style><h1>Similar answers to {html.escape(lab)}</h1><p><strong>{NO_PROOF}</strong></p>"
        f"<p>The median of all pairs: {median:.0%}. Marked is what agrees beyond the code that was handed out.</p>"
        + "".join(parts)
    )
