"""How long a lesson takes: counted from its cells by one rule, and held against what its header says.

Until classes have been timed: 200 words a minute, half a minute for a code cell and for a guess, 3 for an explorer, 4
for a function that the reader writes. What is collapsed costs no minutes; the limits of a first sitting
count it all the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from course_tools.author.source import tags_of

WORDS_A_MINUTE = 200
CELL_MIN, GUESS_MIN, EXPLORER_MIN, TURN_MIN = 0.5, 0.5, 3.0, 4.0
_SECOND = re.compile(r"^## Second sitting", re.M)
_COLLAPSED = re.compile(r"<details>.*?</details>", re.S)
_STATED = re.compile(r"^\| Time \| (?:first sitting )?(\d+) minutes(?:, second sitting (\d+))?", re.M)


@dataclass(frozen=True)
class Sitting:
    """What one sitting of a lesson asks of its reader.

    Attributes:
        words: of prose, formulas included, collapsed answers not.
        cells: of code that is shown; collapsed solutions are not.
        all_words, all_cells: with what is collapsed.
        tables: how often a guess, a formula and a measurement are compared.
        explorers: widgets to play with.
        turns: functions that the reader writes.
        guesses: boxes to fill.
    """

    words: int
    cells: int
    all_words: int
    all_cells: int
    tables: int
    explorers: int
    turns: int
    guesses: int

    @property
    def minutes(self) -> float:
        """By the rule of this module."""
        cells = CELL_MIN * (self.cells - self.explorers - self.turns) + GUESS_MIN * self.guesses
        return self.words / WORDS_A_MINUTE + cells + EXPLORER_MIN * self.explorers + TURN_MIN * self.turns


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
    every = [cell for cell in cells if cell.cell_type == "code" and "google.colab" not in cell.source]  # the build's
    code = [cell.source for cell in every if "solution" not in tags_of(cell)]

    def count(pattern: str) -> int:
        return sum(len(re.findall(pattern, source)) for source in code)

    return Sitting(
        words=sum(len(_COLLAPSED.sub("", text).split()) for text in texts),
        cells=len(code),
        all_words=sum(len(text.split()) for text in texts),
        all_cells=len(every),
        tables=count(r"\bcompare\("),
        explorers=count(r"\b\w+Explorer\("),
        turns=count(r"@your_turn\("),
        guesses=count(r"\bask\("),
    )


def stated(cells: Iterable[NotebookNode]) -> list[int]:
    """The minutes of each sitting as the header has them; empty where it says nothing."""
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
