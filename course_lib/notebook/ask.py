"""The predict box: a field that takes the reader's guess before the code runs, and hands it to `compare`.

The box starts empty: a number that already stands there is an answer, not a question. A guess stays when the cell is
run again. Where nobody types (a headless run), `compare` shows the default, in brackets, as a typical first guess.

Every lesson opens this module.
"""

from __future__ import annotations

import re
from pathlib import Path

import anywidget
import traitlets
from IPython.display import display

from course_lib.units import UNITS, quantity

_NUMBER = re.compile(r"^\s*([-+]?[\d_.,]*\d[\d_.,]*(?:[eE][-+]?\d+)?)\s*([A-Za-zµ][\w/\-]*)?\s*$")
_typed: dict[str, str] = {}
"""What the reader typed in this kernel, by question: running the cell again must not wipe the guess."""


class Ask(anywidget.AnyWidget):
    """A labelled number field. Read `.value` (in `.unit`) and `.answered`."""

    _esm = Path(__file__).with_name("ask.js")
    _css = Path(__file__).with_name("ask.css")
    question = traitlets.Unicode().tag(sync=True)
    unit = traitlets.Unicode().tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    message = traitlets.Unicode().tag(sync=True)

    def __init__(self, question: str, unit: str, default: float) -> None:
        super().__init__(question=question, unit=unit, text=_typed.get(question, ""))
        self.default = default

    @property
    def answered(self) -> bool:
        """Whether the reader typed something that is a number."""
        return bool(self.text.strip()) and not self.message

    @property
    def value(self) -> float:
        """The reader's guess in `unit`, or the default while the box is empty or unreadable."""
        return parse_guess(self.text, self.unit) if self.answered else self.default

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


def ask(question: str, unit: str = "", *, default: float) -> Ask:
    """Show a box for the reader's guess and return it.

    Args:
        question: what to guess, in words. Also the key under which the guess is kept in this kernel.
        unit: a unit that `course_lib.units` knows ("MiB", "GFLOP", "ms"), or "" for a plain number.
        default: a typical first guess (not the answer), used while the box is empty.

    Raises:
        ValueError: the unit is unknown.
    """
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; known are {', '.join(u for u in UNITS if u)}")
    box = Ask(question, unit, default)
    display(box)
    return box


def parse_guess(text: str, unit: str) -> float:
    """The number of `unit`s that `text` says: `parse_guess("1.5 GiB", "MiB") == 1536.0`, `parse_guess("3e6", "")`.

    Raises:
        ValueError: no number, an unknown unit, or a unit of another kind; the text is shown to the reader.
    """
    match = _NUMBER.match(text)
    if match is None:
        raise ValueError(f"“{text.strip()}” is not a number. Try 42, 1.5e6 or 1.5 {unit or 'million'}.")
    try:
        number = float(match[1].replace(",", "").replace("_", ""))
    except ValueError:
        raise ValueError(f"“{match[1]}” is not a number: write 1500000, 1,500,000 or 1.5e6.") from None
    typed_unit = match[2]
    if typed_unit is None:
        return number
    if typed_unit not in UNITS or UNITS[typed_unit] is not UNITS[unit]:
        same_kind = [u for u in UNITS[unit].units if u]
        raise ValueError(f"“{typed_unit}” is no unit for this. Use {', '.join(same_kind)}, or a number alone.")
    return quantity(number, typed_unit).to(unit)
