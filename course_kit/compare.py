"""Guess, formula and measurement in one table; a formula that is wrong stops the notebook.

`predict` and `measure` return the same types (`course_kit.units`, `course_kit.accounts`), so their results meet here
without an adapter. The ratio in the table is always measurement over prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from course_kit.accounts import Attributed, MemoryAccount
from course_kit.tables import as_html, as_text
from course_kit.units import Bytes, Count, Quantity, Ratio, quantity

Number = Quantity | int | float
Value = Number | MemoryAccount | Mapping[str, Number]


class Guess(Protocol):
    """What `course_kit.notebook.ask` returns: a number with a unit, or None where nobody typed one."""

    @property
    def value(self) -> float | None: ...
    @property
    def unit(self) -> str: ...


class ComparisonError(AssertionError):
    """A measurement lies outside the tolerance of its prediction. `.comparison` holds the table."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        wrong = [row for row in comparison.rows if not row.ok]
        lines = [f"{row.name}: {row.explain()}" for row in wrong]
        super().__init__("measurement and prediction disagree\n" + "\n".join(lines) + f"\n\n{comparison}")

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the table, without the stack of library calls above it."""
        return [f"ComparisonError: {self}"]


@dataclass(frozen=True)
class Row:
    """One line of a comparison. `predicted` and `measured` have the same type.

    Attributes:
        name: what was compared.
        predicted: the formula's value.
        measured: the observed value.
        tolerance: largest relative deviation from `predicted` that is accepted; None means "shown, not checked".
        asked: whether the reader was asked for this number.
        guess: the reader's guess in the same type; None where the box was left empty, or nobody asked.
        attributed: whether nobody measured: the bytes were attributed to a library's calls by a formula.
    """

    name: str
    predicted: Quantity
    measured: Quantity
    tolerance: float | None
    asked: bool = False
    guess: Quantity | None = None
    attributed: bool = False

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
        deviation, allowed = (
            abs(float(self.measured) - float(self.predicted)),
            self.tolerance * abs(float(self.predicted)),
        )
        return deviation <= allowed * (1 + 1e-12)  # 1 % off is within 1 %, whatever the last bit says

    def explain(self) -> str:
        """One sentence about the deviation."""
        allowed = f"{self.tolerance:.3%}" if self.tolerance else "exact equality"
        return (
            f"measured {self.measured:,} is {self.ratio:.6g} × the predicted {self.predicted:,}; allowed is {allowed}"
        )

    def cells(self, unit: str | None) -> tuple[str, ...]:
        """The printed cells: name, guess, predicted, measured, ratio, tolerance."""
        unit = unit or max(self.predicted, self.measured, key=float).best_unit()
        spec = _digits(self.predicted, unit) + unit
        guess = "" if self.guess is None else format(self.guess, spec)
        exact = self.ratio == 1 and self.tolerance == 0
        ratio = "1, exactly" if exact else f"{self.ratio:.4f}" if self.ratio < 1000 else f"{self.ratio:.3g}"
        tolerance = "not checked" if self.tolerance is None else "exact" if self.tolerance == 0 else _percent(self)
        verdict = "" if self.tolerance is None else " ✓" if self.ok else " ✗"
        measured = f"{self.measured:{spec}}" + (" attributed" if self.attributed else "")
        return self.name, guess, f"{self.predicted:{spec}}", measured, ratio, tolerance + verdict


class Comparison:
    """The table that `compare` returns. As the last expression of a cell it renders as HTML, elsewhere as text."""

    def __init__(self, rows: list[Row], unit: str | None, columns: tuple[str, str]) -> None:
        self.rows, self.unit, self.columns = rows, unit, columns

    @property
    def ok(self) -> bool:
        """Whether every row lies within its tolerance."""
        return all(row.ok for row in self.rows)

    @property
    def asked(self) -> bool:
        """Whether the reader was asked for any row, so that the guess column is worth its width."""
        return any(row.asked for row in self.rows)

    def _table(self) -> list[tuple[str, ...]]:
        head = ("", "your guess", *self.columns, "ratio", "tolerance")
        lines = [head, *(row.cells(self.unit) for row in self.rows)]
        return lines if self.asked else [(line[0], *line[2:]) for line in lines]

    def __str__(self) -> str:
        head, *rows = self._table()
        return as_text(head, rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *rows = self._table()
        wrong = [number for number, row in enumerate(self.rows) if not row.ok]
        return as_html(head, rows, marked=wrong)

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict[str, str], dict[str, object]]:
        """HTML and text; the numbers ride along as metadata, where `course run` finds them."""
        return {"text/html": self._repr_html_(), "text/plain": str(self)}, {"course": {"checks": self.checks()}}

    def checks(self) -> list[dict[str, object]]:
        """The rows as plain data: name, predicted, measured, ratio, tolerance, ok."""
        return [
            {
                "name": row.name,
                "predicted": float(row.predicted),
                "measured": float(row.measured),
                "ratio": row.ratio if row.ratio != float("inf") else None,
                "tolerance": row.tolerance,
                "ok": row.ok,
            }
            for row in self.rows
        ]


def compare(
    *,
    predicted: Value,
    measured: Value,
    guess: Guess | Number | Mapping[str, Guess | Number] | None = None,
    tolerance: float | None = 0.0,
    name: str = "total",
    unit: str | None = None,
    columns: tuple[str, str] = ("formula", "measured"),
) -> Comparison:
    """Put a guess, a prediction and a measurement side by side, and insist that they agree.

    Args:
        predicted: a quantity, a number, a `MemoryAccount`, or a mapping from row names to quantities.
        measured: the same kind, with the same row names. Bytes that are only `Attributed` are marked as such.
        guess: what `ask` returned, or a number; it belongs to the only row, or to the row "total". A mapping from row
            names to guesses says where they belong. A box that was left empty is an empty cell.
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
        asked = key in guesses
        guessed = _guess(guesses[key], p) if asked else None
        rows.append(Row(key, p, m, tolerance, asked, guessed, isinstance(right[key], Attributed)))
    comparison = Comparison(rows, unit, columns)
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
    if kinds:
        kind = kinds.pop()
        return kind(predicted), kind(measured)
    whole = all(float(v).is_integer() for v in (predicted, measured))
    kind = Count if whole else Ratio
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


def _percent(row: Row) -> str:
    return f"± {100 * (row.tolerance or 0):.3g} %"
