"""Exercises that can be checked on the spot: a hint for a wrong answer, never the answer itself."""

from __future__ import annotations

import html
import math
from typing import ClassVar

from course_kit.units import Quantity


class Verdict:
    """What `self_check` found. As the last expression of a cell it renders as a coloured line."""

    _COLOURS: ClassVar = {"right": "#009e73", "wrong": "#d55e00", "open": "#999999"}
    _SIGNS: ClassVar = {"right": "✓", "wrong": "✗", "open": "○"}

    def __init__(self, state: str, message: str) -> None:
        self.state, self.message = state, message

    def __repr__(self) -> str:
        return f"{self._SIGNS[self.state]} {self.message}"

    def _repr_html_(self) -> str:
        style = f"border-left:4px solid {self._COLOURS[self.state]};padding:.4em .9em"
        return f'<div style="{style}">{html.escape(repr(self))}</div>'


def self_check(answer: object, expected: object, *, tolerance: float = 0.0, hint: str = "") -> Verdict:
    """Check an exercise's answer. Never raises for a wrong one: the notebook goes on.

    Args:
        answer: the reader's answer; None means "not answered yet".
        expected: the right answer, best computed by the code of the lesson rather than typed.
        tolerance: largest accepted relative deviation of a number, or of each in a list (0: equal).
        hint: where to look, shown with a wrong answer.

    Returns:
        A verdict that says right, not yet (with the direction for a number, and the hint), or still open.
    """
    if answer is None or answer is ...:
        return Verdict("open", "Not answered yet. Replace None by your answer and run the cell again.")
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        return _check_number(answer, float(expected), expected, tolerance, hint)
    if type(answer) is type(expected) and (answer == expected or _all_close(answer, expected, tolerance)):
        return Verdict("right", "Right.")
    return Verdict("wrong", f"Not yet. {hint}".strip())


def _all_close(answer: object, expected: object, tolerance: float) -> bool:
    """Whether both are lists of as many entries, and each is what is expected."""
    if not isinstance(answer, list) or not isinstance(expected, list) or len(answer) != len(expected):
        return False
    return all(self_check(mine, right, tolerance=tolerance).state == "right" for mine, right in zip(answer, expected))


def _check_number(answer: object, target: float, expected: object, tolerance: float, hint: str) -> Verdict:
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return Verdict("wrong", f"The answer should be a number, not a {type(answer).__name__}.")
    if isinstance(answer, Quantity) and isinstance(expected, Quantity) and type(answer) is not type(expected):
        return Verdict("wrong", f"The answer should be {type(expected).__name__}, not {type(answer).__name__}.")
    given = float(answer)
    if given == target or math.isclose(given, target, rel_tol=tolerance, abs_tol=0.0):
        return Verdict("right", "Right.")
    if math.isnan(given):
        return Verdict("wrong", f"Not yet: that is not a number. {hint}".strip())
    return Verdict("wrong", f"Not yet: too {'small' if given < target else 'large'}. {hint}".strip())
