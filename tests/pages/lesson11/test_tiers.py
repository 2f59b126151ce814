"""The picture of the three tiers: bars as long as their shares, and a word where it is too much."""

import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes, Ratio
from course_pages.lesson11.tiers import fill_of_tiers


def test_bars_are_shares_and_too_much_is_said() -> None:
    accounts = {"GPU": MemoryAccount(parameters=Bytes(30), gradients=Bytes(20)), "disk": MemoryAccount()}
    efficiencies = {"weights": Ratio(0.25), "gradients": None}
    picture = fill_of_tiers(
        accounts, {"GPU": Bytes(40), "disk": Bytes(99)}, efficiencies, caption="Full.", alt="The GPU is too full."
    )
    left, right = picture.figure.axes
    assert _lengths(left)[:2] == pytest.approx([0.75, 0.5])
    assert [text.get_text() for text in left.texts] == ["too much"]
    assert _lengths(right) == [0.25, 0]
    assert [text.get_text() for text in right.texts] == ["25%", "stays"]


def _lengths(axes: Axes) -> list[float]:
    return [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
