"""What lesson 09's exercises accept, beyond its turns."""

from __future__ import annotations

import pytest

from course_lib.pipeline.schedule import parse, simulate
from course_pages.lesson09.turns import units_of_two

THREE = "F0 B0 W0\nF0 B0 W0\nF0 B0 W0"


def test_a_schedule_of_two_ranks_is_timed() -> None:
    assert units_of_two(None) is None
    assert units_of_two("F0 F1 BW0 BW1\nF0 BW0 F1 BW1") == 9
    assert units_of_two("F0 F1 B0 W0 B1 W1\nF0 B0 F1 B1 W0 W1") == 7
    assert simulate(parse(THREE)).makespan == 7, "as long with three ranks: the time alone does not tell"


@pytest.mark.parametrize("text", [THREE, "F0 F1 BW0 BW1", "F0 BW0\nF0 BW0"])
def test_another_shape_is_refused_however_long_it_takes(text: str) -> None:
    with pytest.raises(ValueError, match="two lines"):
        units_of_two(text)
