"""ask, show and self_check: what a reader types, reads and gets told."""

import math

import numpy as np
import pytest

from course_kit import units
from course_kit.notebook import Ask, ask, self_check, show
from course_kit.notebook.ask import parse_guess
from course_kit.units import Bytes, Flops


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [("49", "MiB", 49), (" 1.5 GiB ", "MiB", 1536), ("1,500,000", "", 1.5e6), ("3e6", "", 3e6), ("2 million", "", 2e6),
     ("2000 kB", "MB", 2), ("-1", "s", -1)],
)  # fmt: skip
def test_a_guess_may_carry_its_own_unit(text, unit, value):
    assert parse_guess(text, unit) == pytest.approx(value)


@pytest.mark.parametrize("text", ["many", "", "1..2", "13,5", "1e999", "5 %", "3 GFLOP", "0x10", "3 bananas"])
def test_what_is_not_a_number_is_told_and_is_no_guess(text):
    with pytest.raises(ValueError, match="."):
        parse_guess(text, "MiB")
    box = Ask(f"how much, if {text!r}?", "MiB")
    box.text = text
    assert box.value is None and box.said == "nothing yet"
    assert bool(box.message) == bool(text.strip())


def test_the_box_starts_empty_and_keeps_the_guess_when_the_cell_runs_again():
    box = ask("how many bytes, once?", unit="KiB")
    assert box.text == "" and box.value is None and box.said == "nothing yet"
    box.text = "12"
    again = ask("how many bytes, once?", unit="KiB")
    assert again.value == 12 and again.said == "12 KiB"
    again.text = " "
    assert again.value is None


def test_an_unknown_unit_is_refused():
    with pytest.raises(ValueError, match="unknown unit 'megs'"):
        ask("how much?", unit="megs")


def test_show_prints_the_source_that_runs_with_its_file():
    source = show(units.quantity)
    assert source.origin == "course_kit/units.py" and source.code.startswith("def quantity(")
    assert "```python" in source._repr_markdown_()
    bare = show(units.quantity, docstring=False)
    assert '"""' not in bare.code and "raise ValueError" in bare.code


@pytest.mark.parametrize("thing", [len, 3, "text", math.sin])
def test_show_refuses_what_has_no_source(thing):
    with pytest.raises(ValueError, match="show|source"):
        show(thing)


@pytest.mark.parametrize(
    ("answer", "expected", "state"),
    [(None, 3, "open"), (3, 3, "right"), (3.0, 3, "right"), (2, 3, "wrong"), (True, 1, "wrong"), ("3", 3, "wrong"),
     (Bytes(3), Flops(3), "wrong"), ("ring", "ring", "right"), (float("nan"), 1.0, "wrong"), ([1, 2], [1, 2], "right"),
     (np.int64(3), 3, "right"), (np.float32(2), 3, "wrong")],
)  # fmt: skip
def test_self_check(answer, expected, state):
    verdict = self_check(answer, expected, hint="Look at the table.")
    assert verdict.state == state
    other_kind = type(answer) in (bool, Bytes) or (isinstance(answer, str) and isinstance(expected, int))
    assert ("Look at the table." in verdict.message) == (state == "wrong" and not other_kind)


def test_a_wrong_answer_gets_a_direction_but_never_the_number():
    message = self_check(10, 12345).message
    assert "too small" in message and "12345" not in message


def test_tolerance_is_relative():
    assert self_check(101, 100, tolerance=0.01).state == "right"
    assert self_check(102, 100, tolerance=0.01).state == "wrong"


def test_tolerance_holds_for_each_number_of_a_list():
    assert self_check([5.5406] * 2, [5.54063] * 2, tolerance=1e-4).state == "right"
    assert self_check([5.5406, 5.6], [5.54063] * 2, tolerance=1e-4).state == "wrong"
    assert self_check([5.5406], [5.54063] * 2, tolerance=1e-4).state == "wrong"
    assert self_check([5.5406] * 2, [5.54063] * 2).state == "wrong"
