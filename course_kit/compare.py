"""Guess, formula and measurement in one table; a formula that is wrong stops the notebook.

`predict` and `measure` return the same types (`course_kit.units`, `course_kit.accounts`), so their results meet here
without an adapter. The ratio in the table is always measurement over prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from course_kit.accounts import MemoryAccount, ModelledBytes
from course_kit.tables import Tabular, as_html
from course_kit.units import Bytes, Count, Quantity, Ratio, quantity

Number = Quantity | int | float
Value = Number | MemoryAccount | Mapping[str, Number]


class Guess(Protocol):
    """A reader's guess, as `course_kit.notebook.ask` returns one: a number with a unit, or None for an empty box."""

    @property
    def value(self) -> float | None: ...
    @property
    def unit(self) -> str: ...


class ComparisonError(AssertionError):
    """A measurement lies outside the tolerance of its prediction. `.comparison` holds the table."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        lines = [f"{row.name}: {row.explain()}" for row in comparison.rows if not row.ok]
        super().__init__("measurement and prediction disagree\n" + "\n".join(lines) + f"\n\n{comparison}")

    def _render_traceback_(self) -> list[str]:
        """The lines that a notebook shows: the table, without the stack of library calls above it."""
        return [f"ComparisonError: {self}"]


@dataclass(frozen=True)
class Row:
    """One line of a comparison. `predicted` and `measured` have the same type."""

    name: str  #: the row's heading
    predicted: Quantity  #: the formula's value
    measured: Quantity  #: the observed value
    tolerance: float | None  #: the largest accepted deviation, relative to `predicted`; None where nothing is checked
    guess: Quantity | None = None  #: the reader's guess, in the same type; None for an empty box, or without a question
    modelled: bool = False  #: whether `measured` comes from a formula, as the bytes of a library's collectives do

    @property
    def ratio(self) -> float:
        """measured / predicted; 1 when both are zero, infinite when only the prediction is zero."""
        if float(self.predicted) == 0:
            return 1.0 if float(self.measured) == 0 else float("inf")
        return float(self.measured) / float(self.predicted)

    @property
    def ok(self) -> bool:
        """Whether the measurement lies within the tolerance (always, where nothing is checked)."""
        if self.tolerance is None:
            return True
        deviation = abs(float(self.measured) - float(self.predicted))
        allowed = self.tolerance * abs(float(self.predicted))
        return deviation <= allowed * (1 + 1e-12)  # 1 % off is within 1 %, whatever the last bit says

    def explain(self) -> str:
        """One sentence about the deviation."""
        allowed = f"{self.tolerance:.3%}" if self.tolerance else "exact equality"
        off = f"measured {self.measured:,} is {self.ratio:.6g} × the predicted {self.predicted:,}"
        return f"{off}; allowed is {allowed}"

    def cells(self, unit: str | None) -> tuple[str, ...]:
        """The printed cells: name, guess, predicted, measured, ratio, tolerance."""
        unit = unit or max(self.predicted, self.measured, key=float).best_unit()
        spec = _digits(self.predicted, unit) + unit
        guess = "" if self.guess is None else _printed(self.guess, spec)
        exact = self.ratio == 1 and self.tolerance == 0
        ratio = "1, exactly" if exact else f"{self.ratio:.4f}" if self.ratio < 1000 else f"{self.ratio:.3g}"
        if float(self.predicted) == float(self.measured) == 0:
            ratio = "both 0"
        tolerance = f"± {100 * self.tolerance:.3g} %" if self.tolerance else "exact"
        verdict = "not checked" if self.tolerance is None else f"{tolerance} {'✓' if self.ok else '✗'}"
        measured = _printed(self.measured, spec) + (" modelled" if self.modelled else "")
        return self.name, guess, _printed(self.predicted, spec), measured, ratio, verdict


class Comparison(Tabular):
    """The table that `compare` returns. As the last expression of a cell it renders as HTML, elsewhere as text."""

    def __init__(self, rows: list[Row], unit: str | None, columns: tuple[str, str], *, asked: bool) -> None:
        self.rows, self.unit, self.columns = rows, unit, columns
        self.asked = asked  #: whether a guess was asked for in any row; else the table has no column for guesses

    @property
    def ok(self) -> bool:
        """Whether every row lies within its tolerance."""
        return all(row.ok for row in self.rows)

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        head = ("", "your guess", *self.columns, "ratio", "tolerance")
        lines = [head, *(row.cells(self.unit) for row in self.rows)]
        head, *rows = lines if self.asked else [(line[0], *line[2:]) for line in lines]
        return head, rows

    def _repr_html_(self) -> str:
        wrong = [number for number, row in enumerate(self.rows) if not row.ok]
        return as_html(*self._table(), marked=wrong)

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict[str, str], dict[str, object]]:
        """HTML and text; the numbers ride along as metadata, where `course run` finds them."""
        return {"text/html": self._repr_html_(), "text/plain": str(self)}, {"course": {"checks": self.checks()}}

    def checks(self) -> list[dict[str, object]]:
        """The rows as plain data: name, predicted, measured, ratio, tolerance, ok."""
        return [
            {"name": row.name, "predicted": float(row.predicted), "measured": float(row.measured)}
            | {"ratio": None if math.isinf(row.ratio) else row.ratio}  # JSON knows no infinity
            | {"tolerance": row.tolerance, "ok": row.ok}
            for row in self.rows
        ]


def compare(
    *, predicted: Value, measured: Value, guess: Guess | Number | Mapping[str, Guess | Number] | None = None,
    tolerance: float | None = 0.0, name: str = "total", unit: str | None = None,
    columns: tuple[str, str] = ("formula", "measured"),
) -> Comparison:  # fmt: skip
    """Put a guess, a prediction and a measurement side by side, and insist that they agree.

    Args:
        predicted: a quantity, a number, a `MemoryAccount`, or a mapping from row names to quantities.
        measured: the same kind, with the same row names. `ModelledBytes` are marked as such.
        guess: the box of `ask`, or a number, for the only row or the row "total"; or a mapping from row names to
            guesses. A box that was left empty is an empty cell.
        tolerance: largest accepted |measured/predicted - 1|. 0 demands equality; None shows without checking.
        name: the row's name where there is only one.
        unit: print in this unit ("GiB"); by default the one that fits, row by row.
        columns: the headings of the two number columns.

    Returns:
        The table, as an object that renders itself.

    Raises:
        ComparisonError: a row is outside its tolerance. The table is part of the message.
        ValueError: the two sides do not have the same rows or units, or the tolerance is negative.
    """
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance must be 0 or more (or None for 'not checked'), not {tolerance}")
    left, right = _rows(predicted, name), _rows(measured, name)
    if left.keys() != right.keys():
        odd = ", ".join(sorted(left.keys() ^ right.keys()))
        raise ValueError(f"the two sides must have the same rows; only one side has: {odd}")
    guesses = _guesses(guess, left)
    rows = []
    for key in left:
        p, m = _same_kind(key, left[key], right[key])
        guessed = _guess(guesses[key], p) if key in guesses else None
        rows.append(Row(key, p, m, tolerance, guessed, isinstance(right[key], ModelledBytes)))
    comparison = Comparison(rows, unit, columns, asked=bool(guesses))
    if not comparison.ok:
        raise ComparisonError(comparison)
    return comparison


def _rows(value: Value, name: str) -> dict[str, Number]:
    if isinstance(value, MemoryAccount):
        return {**value, "total": value.total}
    if isinstance(value, Mapping):
        return dict(value)
    return {name: value}


def _guesses(
    guess: Guess | Number | Mapping[str, Guess | Number] | None, rows: Mapping[str, Number]
) -> Mapping[str, Guess | Number]:
    """Row name → guess."""
    if guess is None:
        return {}
    if not isinstance(guess, Mapping):
        if len(rows) > 1 and "total" not in rows:
            raise ValueError(f"which row is guessed? Give guess={{name: guess}}; the rows are {', '.join(rows)}")
        guess = {"total" if "total" in rows else next(iter(rows)): guess}
    if unknown := guess.keys() - rows.keys():
        raise ValueError(f"no row {', '.join(sorted(unknown))} to guess; the rows are {', '.join(rows)}")
    return guess


def _same_kind(key: str, predicted: Number, measured: Number) -> tuple[Quantity, Quantity]:
    """Both numbers as the same quantity: a bare number takes the other side's unit, two bare ones become a count."""
    kinds = {Bytes if isinstance(v, Bytes) else type(v) for v in (predicted, measured) if isinstance(v, Quantity)}
    if len(kinds) > 1:
        raise ValueError(f"row {key!r} compares {' with '.join(sorted(k.__name__ for k in kinds))}")
    whole = all(float(v).is_integer() for v in (predicted, measured))
    kind = kinds.pop() if kinds else Count if whole else Ratio
    return kind(predicted), kind(measured)


def _guess(guess: Guess | Number, like: Quantity) -> Quantity | None:
    """The guess as a quantity of the row's kind; None where the reader made none."""
    if isinstance(guess, int | float | Quantity):
        return type(like)(guess)
    value = quantity(guess.value or 0, guess.unit)
    if type(value) is not type(like) and not (isinstance(value, Count) and isinstance(like, Ratio)):
        raise ValueError(f"the guess is in {guess.unit or 'plain numbers'}, the measurement is {type(like).__name__}")
    if guess.value is None:
        return None
    return value if type(value) is type(like) else type(like)(guess.value)


def _digits(value: Quantity, unit: str) -> str:
    """Format precision that shows a small number in `unit` with three significant digits."""
    if isinstance(value, Ratio):
        if value.is_integer() or not 0.01 <= abs(value) < 10_000:
            return ".6g"
        return ".4" if abs(value) >= 0.1 else ".4g"
    size = abs(value.to(unit))
    return "" if size == 0 or size >= 0.1 or value.units[unit] == 1 else ".4"


def _printed(value: Quantity, spec: str) -> str:
    """The value in the format `spec`; a power of two that is far from 1 as a power ("2^-17")."""
    share, exponent = math.frexp(value)
    is_power = share == 0.5 and isinstance(value, Ratio) and abs(exponent - 1) >= 10
    return f"2^{exponent - 1}" if is_power else format(value, spec)
