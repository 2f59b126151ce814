"""The figures that others print, and what counts as the same figure.

Each `NAME.json` beside a `test_NAME.py` is a list of rows: `id`, `inputs`, `value`, the tolerance that rounding in
print explains, `source`. `read_directly: false` marks what was computed from a paper's formula, or taken from a text
that quotes it. `COMPUTED` in the test says how this library gets each of them.
"""

import json
from collections.abc import Callable, Collection
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest

Rows = dict[str, dict[str, Any]]


def rows_of(test_file: str) -> Rows:
    """id → row, of the JSON file beside a test."""
    path = Path(test_file)
    rows = json.loads(path.with_name(path.stem.removeprefix("test_") + ".json").read_text("utf-8"))
    return {row["id"]: row for row in rows}


def within(row: dict[str, Any]) -> Any:
    """The row's value, for `==`: its own tolerance counts, of its own kind, and no other; a table has none."""
    kind, value = row["tolerance_kind"], row["value"]
    if isinstance(value, list) and isinstance(value[0], list):
        return value
    return pytest.approx(value, **{kind: max(row["tolerance"], 1e-12), {"rel": "abs", "abs": "rel"}[kind]: 0})


def computed(formula: Callable[..., Any], inputs: dict[str, Any]) -> Any:
    """What the formula makes of those of the inputs that it names, or of all if it has `**inputs`."""
    named = signature(formula).parameters
    if any(each.kind is Parameter.VAR_KEYWORD for each in named.values()):
        return formula(**inputs)
    return formula(**{name: inputs[name] for name in named if name in inputs})


def figures(rows: Rows, formulas: dict[str, Callable[..., Any]], besides: Collection[str] = ()) -> tuple[Any, Any]:
    """Two tests: that all rows have a formula `besides` those that cannot, and that each formula gives its row."""

    def every_row_is_recomputed() -> None:
        assert set(formulas) == set(rows) - set(besides)

    @pytest.mark.parametrize("name", formulas)
    def published_figure(name: str) -> None:
        assert computed(formulas[name], rows[name].get("inputs", {})) == within(rows[name])

    return every_row_is_recomputed, published_figure
