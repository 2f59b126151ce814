"""Lines of bytes: the formulas are the lines, the measurements the dots, and the words say both ends."""

from __future__ import annotations

import numpy as np
import pytest

from course_lib.figures import growth
from course_lib.units import Bytes

OVER = [1, 2, 4]
LINES = {"training": [Bytes(n * 2**20) for n in OVER], "inference": [Bytes(2**20)] * 3}


def test_lines_and_dots_are_the_numbers():
    (axes,) = growth.draw_memory_growth(OVER, LINES, "layers", {"training": LINES["training"]}).axes
    drawn = [list(np.asarray(line.get_ydata())) for line in axes.lines]
    assert drawn == [[1, 2, 4], [1, 1, 1], [1, 2, 4]]
    assert axes.lines[2].get_linestyle() == "None" and axes.get_ylabel() == "alive (MiB)"
    assert [text.get_text() for text in axes.texts] == ["training", "inference"]


def test_limits_and_logarithms():
    (axes,) = growth.draw_memory_growth(OVER, LINES, "layers", limits={"a card": Bytes(2**21)}, log=True).axes
    assert axes.get_yscale() == axes.get_xscale() == "log"
    assert list(np.asarray(axes.lines[-1].get_ydata())) == [2, 2]


def test_the_words_say_both_ends(capsys):
    growth.memory_growth(OVER, LINES, along="layers", caption="One grows.", limits={"a card": Bytes(2**30)})
    said = capsys.readouterr().out
    assert "training: 1.00 MiB at 1, 4.00 MiB at 4." in said and "a card has 1.00 GiB." in said


def test_lines_of_other_lengths_are_refused():
    for lines in ({}, {"short": [Bytes(1)]}):
        with pytest.raises(ValueError, match="3 values each"):
            growth.draw_memory_growth(OVER, lines, "layers")
