"""The format of answers to turns: what an edit changes, and what is said of one that cannot be."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.pages.answers import Answer, read, solutions

PAGE = """\
%load_ext course

@your_turn(turns.check_sum, look="at the end")
def add(numbers):
    ...

@add.solution
@cache
def add(numbers):
    total = 0
    for number in numbers:
        total += number
    return total
"""
ANSWERS = """\
def twice(x):
    return 2 * x

right built_in
    return sum(numbers)

nightly wrong doubled of built_in: 6, but is 12
- return sum(numbers)
+ return twice(sum(numbers))

wrong thrice of doubled: 6: or 18
- return twice(sum(numbers))
+ return 3 * sum(numbers)

wrong last: 3
  for number in numbers:
-     total += number
+     total = number
@@
- total = 0
+ total = 1
"""


def answers(tmp_path: Path, text: str) -> dict[str, Answer]:
    (file := tmp_path / "answers.txt").write_text(f"from functools import cache\n\n== check_sum(numbers)\n\n{text}")
    return {answer.name: answer for answer in read(file, solutions(PAGE))}


def test_a_body_and_edits_of_the_page_and_of_others_are_functions_with_a_source(tmp_path: Path) -> None:
    found = answers(tmp_path, ANSWERS)
    assert [each.function((1, 2, 3)) for each in found.values()] == [6, 12, 18, 3]
    assert [each.words for each in found.values()] == ["", "6, but is 12", "6: or 18", "3"]
    assert [name for name, each in found.items() if each.nightly] == ["doubled"]
    assert inspect.getsource(found["doubled"].function) == "def doubled(numbers):\n    return twice(sum(numbers))"
    assert inspect.getsource(found["built_in"].function) == "def built_in(numbers):\n    return sum(numbers)\n"
    assert inspect.unwrap(found["last"].function).__name__ == "last"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wrong nothing\n    return 0\n", "answers.txt:5: 'wrong nothing': is it `== check_sum"),
        ("right nothing: 6\n    return 0\n", "answers.txt:5: 'right nothing: 6': is it"),
        ("== sum(numbers)\n", "answers.txt:5: '== sum(numbers)': is it"),
        ("right a\n    return 0\n\nwrong a: 6\n    return 0\n", "answers.txt:8: 'wrong a: 6': two are called so"),
        ("wrong a: 6\n\n", "answers.txt:5: 'wrong a: 6': no body, and no such answer above"),
        ("wrong a: 6\n- total = 1\n", "answers.txt:5: a edits what is not there once: 0 places fit 'total = 1'"),
        ("wrong a of b: 6\n- total = 1\n", "answers.txt:5: a edits what is not there once: 'b'"),
        (
            "right b\n    x = 0\n    x = 0\n\nwrong a of b: 6\n- x = 0\n",
            "answers.txt:9: a edits what is not there once: 2",
        ),
        ("right a\n    return (\n", "answers.txt, line 6"),
        ("right a\n    return 0\nreturn 1\n", "answers.txt, line 7"),
    ],
)
def test_an_error_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises((ValueError, SyntaxError)) as problem:
        answers(tmp_path, text)
    assert said in str(problem.value)
