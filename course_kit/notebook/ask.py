"""The predict box: a field that takes the reader's guess before the code runs, and hands it to `compare`.

The box starts empty: a number that already stands there is an answer, not a question. A guess stays when the cell is
run again. For an empty box, `compare` leaves the cell empty: no guess is printed that no reader made.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import anywidget
import traitlets
from IPython.display import display

from course_kit.units import UNITS, Count, quantity

_NUMBER = re.compile(
    r"^\s*([-+]?(?:\d{1,3}(?:[,_]\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ%][\w/\-]*)?\s*$"
)
_SHORT = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion"}
"""Short form behind a plain number → unit."""
_typed: dict[str, str] = {}
"""Question → text that the reader typed in this kernel: running the cell again must not wipe the guess."""


class Ask(anywidget.AnyWidget):
    """A labelled number field. Read `.value` (in `.unit`), or `.said` for a sentence."""

    _esm = Path(__file__).with_name("ask.js")
    _css = Path(__file__).with_name("ask.css")
    question = traitlets.Unicode().tag(sync=True)
    unit = traitlets.Unicode().tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    message = traitlets.Unicode().tag(sync=True)

    def __init__(self, question: str, unit: str) -> None:
        super().__init__(question=question, unit=unit, text=_typed.get(question, ""))

    @property
    def value(self) -> float | None:
        """The reader's guess in `unit`; None while the box is empty or unreadable."""
        return parse_guess(self.text, self.unit) if self.text.strip() and not self.message else None

    @property
    def said(self) -> str:
        """The guess in words: "12 kB", or "nothing yet"."""
        return "nothing yet" if self.value is None else f"{self.value:g} {self.unit}".rstrip()

    @traitlets.observe("text")
    def _on_text(self, change: traitlets.Bunch) -> None:
        _typed[self.question] = change["new"]
        try:
            self.message = ""
            if change["new"].strip():
                parse_guess(change["new"], self.unit)
        except ValueError as error:
            self.message = str(error)

    def __repr__(self) -> str:
        return f"{self.question} {self.text or '_____'} {self.unit}".rstrip()


def ask(question: str, unit: str = "") -> Ask:
    """Show a box for the reader's guess and return it.

    Args:
        question: the question, which is also the key under which the guess is kept in this kernel.
        unit: a unit that `course_kit.units` knows ("MiB", "GFLOP", "ms"), or "" for a plain number.

    Raises:
        ValueError: the unit is unknown.
    """
    quantity(0, unit)  # refuses an unknown unit
    box = Ask(question, unit)
    display(box)
    return box


def parse_guess(text: str, unit: str) -> float:
    """The number of `unit`s that `text` says: `parse_guess("1.5 GiB", "MiB") == 1536.0`, `parse_guess("500k", "")`.

    Raises:
        ValueError: no number, an unknown unit, or a unit of another kind; the text is shown to the reader.
    """
    match = _NUMBER.match(text)
    if match is None or not math.isfinite(number := float(re.sub("[,_]", "", match[1]))):
        raise ValueError(f"“{text.strip()}” is not a number. Try 42, 1500000, 1,500,000 or 1.5e6.")
    if match[2] is None:
        return number
    kind = UNITS[unit]
    known = {name.lower(): name for name in kind.units if name}
    typed = match[2].lower()
    typed = known.get(_SHORT.get(typed, typed) if kind is Count else typed)
    if typed is None:
        wanted = f"Use {', '.join(known.values())}, or a number alone" if known else "Type the number alone"
        raise ValueError(f"“{match[2]}” is no unit for this. {wanted}.")
    return quantity(number, typed).to(unit)
