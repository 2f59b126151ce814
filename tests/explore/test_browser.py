"""What explorers send to the browser: what all share stands above what is their own, in one text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from course_lib import explore
from course_lib.explore import browser

HERE = Path(browser.__file__).parent
SHARED = {kind: (HERE / f"explorer.{kind}").read_text("utf-8") for kind in ("js", "css")}
EXPLORERS: list[Any] = [getattr(explore, name) for name in explore.__all__ if name.endswith("Explorer")]


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda each: each.__name__)
def test_a_widget_carries_the_shared_text_and_its_own(explorer: Any) -> None:
    own = explorer.__module__.rpartition(".")[2]
    for kind, text in (("js", explorer._esm), ("css", explorer._css)):
        assert str(text).startswith(SHARED[kind])
        assert str(text).endswith((HERE / f"{own}.{kind}").read_text("utf-8"))
    needs_another_file = re.compile(r"^import |\burl\(|@import", re.M)
    assert not needs_another_file.search(f"{explorer._esm}\n{explorer._css}")


def test_every_script_and_sheet_has_a_widget() -> None:
    texts = "".join(f"{each._esm}\n{each._css}" for each in EXPLORERS)
    assert len(EXPLORERS) == 7
    assert [path.name for path in HERE.glob("*.*s") if path.read_text("utf-8") not in texts] == []


def test_the_scripts_stand_in_the_order_of_their_names() -> None:
    both = browser.script("floats", "bits")
    assert both.index("export function encode") < both.index("export function parseNumber")
