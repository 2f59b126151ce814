"""The figures that others print, and what counts as the same figure.

Each `NAME.json` beside a `test_NAME.py` is a list of rows: `id`, `inputs`, `value`, the tolerance that rounding in
print explains, `source`. `read_directly: false` marks what was computed from a paper's formula, or taken from a text
that quotes it.
"""

import json
from pathlib import Path
from typing import Any

import pytest


def rows_of(test_file: str) -> dict[str, dict[str, Any]]:
    """id → row, of the JSON file beside a test."""
    path = Path(test_file)
    rows = json.loads(path.with_name(path.stem.removeprefix("test_") + ".json").read_text("utf-8"))
    return {row["id"]: row for row in rows}


def within(row: dict[str, Any]) -> Any:
    """The row's value, for `==`: its own tolerance counts, of its own kind, and no other."""
    kind = row["tolerance_kind"]
    return pytest.approx(row["value"], **{kind: max(row["tolerance"], 1e-12), {"rel": "abs", "abs": "rel"}[kind]: 0})
