"""The minutes of a lesson: counted from its cells by one rule, and held against the header's.

Until classes have been timed: 200 words a minute, 4 seconds for a line of code, 6 minutes for a function that the
reader writes, 5 for an explorer with its questions, 3/4 for a guess, 5 seconds for a row of a table, 1/2 for a figure.
Collapsed text costs no minutes and is in `all_words` alone. Rows, figures and the code that `show` prints are counted
in stored outputs: a page that was not run has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from course_tools.author.source import tags_of

WORD_MIN, LINE_MIN, ROW_MIN = 1 / 200, 4 / 60, 5 / 60
TURN_MIN, EXPLORER_MIN, GUESS_MIN, FIGURE_MIN = 6.0, 5.0, 0.75, 0.5
_SECOND = re.compile(r"^## Second sitting", re.M)
_COLLAPSED = re.compile(r"<details>.*?</details>", re.S)
_PRINTED = re.compile(r"```python\n(.*?)\n```", re.S)  # as `show` prints it
_ROW = re.compile(r"<tr\b(?:(?!</tr>).)*<td", re.S)  # the row of headings has none
_STATED = re.compile(r"^\| Time \| (?:first sitting )?(\d+) minutes(?:, second sitting (\d+))?", re.M)


@dataclass(frozen=True)
class Sitting:
    """The demands of one sitting of a lesson on its reader.

    Attributes:
        words: words of prose, formulas included, collapsed answers not.
        lines: lines of the page's code that are shown and not empty; collapsed solutions are left out.
        all_words: the words, with collapsed ones.
        tables: number of times that a guess, a formula and a measurement are compared.
        explorers: widgets to play with.
        turns: functions that the reader writes.
        guesses: boxes to fill.
        rows, figures: rows of tables, and pictures, in the stored outputs.
        printed: lines of the library's code in the stored outputs that are not empty.
    """

    words: int
    lines: int
    all_words: int
    tables: int
    explorers: int
    turns: int
    guesses: int
    rows: int
    figures: int
    printed: int

    @property
    def minutes(self) -> float:
        """Minutes by the rule of this module."""
        code = LINE_MIN * (self.lines + self.printed)
        read = WORD_MIN * self.words + code + ROW_MIN * self.rows + FIGURE_MIN * self.figures
        return read + TURN_MIN * self.turns + EXPLORER_MIN * self.explorers + GUESS_MIN * self.guesses


def sittings(cells: Iterable[NotebookNode]) -> list[Sitting]:
    """The sittings of a lesson's source: one, or two where it has the heading "Second sitting"."""
    parts: list[list[NotebookNode]] = [[]]
    for cell in cells:
        if cell.cell_type == "markdown" and (heading := _SECOND.search(cell.source)):
            parts[-1].append(new_markdown_cell(cell.source[: heading.start()]))
            parts.append([new_markdown_cell(cell.source[heading.start() :])])
        else:
            parts[-1].append(cell)
    return [_counted(part) for part in parts]


def _counted(cells: list[NotebookNode]) -> Sitting:
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    code = [cell for cell in cells if cell.cell_type == "code" and "google.colab" not in cell.source]  # the build's
    shown = [cell for cell in code if "solution" not in tags_of(cell)]
    outputs = [output.get("data", {}) for cell in shown for output in cell.get("outputs", [])]

    def count(pattern: str) -> int:
        return sum(len(re.findall(pattern, cell.source)) for cell in shown)

    return Sitting(
        words=sum(len(_COLLAPSED.sub("", text).split()) for text in texts),
        lines=sum(_full_lines(cell.source) for cell in shown),
        all_words=sum(len(text.split()) for text in texts),
        tables=count(r"\bcompare\("),
        explorers=count(r"\b\w+Explorer\("),
        turns=count(r"@your_turn\("),
        guesses=count(r"\bask\("),
        rows=sum(len(_ROW.findall(data.get("text/html", ""))) for data in outputs),
        figures=sum("image/png" in data for data in outputs),
        printed=sum(_full_lines(code) for data in outputs for code in _PRINTED.findall(data.get("text/markdown", ""))),
    )


def _full_lines(code: str) -> int:
    return sum(1 for line in code.splitlines() if line.strip())


def stated(cells: Iterable[NotebookNode]) -> list[int]:
    """The minutes of each sitting as the header has them; empty for a header without minutes."""
    header = next((cell.source for cell in cells if cell.cell_type == "markdown"), "")
    match = _STATED.search(header)
    return [int(minutes) for minutes in match.groups() if minutes] if match else []


def time_complaints(cells: list[NotebookNode]) -> list[str]:
    """Complaints about a header that promises fewer minutes than the rule counts; a page without a time has none."""
    said, counted = stated(cells), [sitting.minutes for sitting in sittings(cells)]
    if said and len(said) != len(counted):
        return [f"its header has the minutes of {len(said)} sittings, and the page has {len(counted)}"]
    return [
        f"its header says {minutes} minutes for {name} sitting, and the rule counts {math.ceil(needed)}: "
        f"cut the page, or say {5 * math.ceil(needed / 5)}"
        for name, minutes, needed in zip(("the first", "the second"), said, counted, strict=False)
        if needed > minutes
    ]
