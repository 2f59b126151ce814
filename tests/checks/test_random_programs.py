"""Random lives: what they find, how short it is when it is said, and what they leave behind."""

import random
from typing import Any

import pytest

from course_kit.checks.failed import CheckFailed
from course_kit.checks.random_programs import random_programs


class Box:
    """A stack of numbers."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def put(self, number: int) -> None:
        """One more."""
        self.numbers.append(number)

    def pop(self) -> None:
        """One less; an error where there is none."""
        self.numbers.pop()


class Small(Box):
    """It has room for three."""

    def put(self, number: int) -> None:
        self.numbers = [*self.numbers, number][:3]


def _draw(chance: random.Random, names: dict[str, Any]) -> str:
    return "box.pop()" if names["box"].numbers and chance.random() < 0.3 else f"box.put({chance.randint(1, 9)})"


def _live(kind: type[Box], **how: Any) -> None:
    random_programs("a box", "box = Box()", {"Box": kind}, {"Box": Box}, _draw, lambda _: ["box.numbers"], **how)


def test_a_right_answer_passes(capsys: pytest.CaptureFixture[str]) -> None:
    _live(Box)
    assert capsys.readouterr().out == "✓ 100 random lives of a box\n"


def test_the_shortest_life_is_the_message_and_differs_when_it_is_pasted() -> None:
    with pytest.raises(CheckFailed) as failed:
        _live(Small, look="the room in the box")
    life = [line.strip() for line in str(failed.value).splitlines() if line.startswith("    ")]
    assert [line.split("(")[0] for line in life] == ["box = Box"] + ["box.put"] * 4
    assert "4 entries" in str(failed.value) and "the room in the box" in str(failed.value)
    boxes = []
    for kind in (Box, Small):
        names: dict[str, Any] = {"Box": kind}
        exec("\n".join(life), names)
        boxes.append(names["box"].numbers)
    assert boxes[0] != boxes[1]


def test_an_error_of_the_answer_is_told() -> None:
    class Broken(Box):
        def put(self, number: int) -> None:
            raise KeyError(number)

    with pytest.raises(CheckFailed, match=r"in these 2 lines(.|\n)*KeyError"):
        _live(Broken)


def test_lives_that_take_too_long_fail() -> None:
    with pytest.raises(CheckFailed, match="at most 0 s"):
        _live(Box, limit_s=0)


def test_names_are_what_they_were() -> None:
    names: dict[str, Any] = {"limit": 7}
    random_programs(
        "a limit", "limit = 3", names, {"limit": 8}, lambda *_: "other = limit", lambda _: ["limit"], count=2
    )
    assert names == {"limit": 7}
