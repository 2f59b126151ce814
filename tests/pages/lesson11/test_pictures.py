"""What is drawn of offload: arrows that cross where placements say so, bars that wait for what they need, a formula."""

from typing import get_args

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes, Seconds
from course_pages.lesson11 import pictures as offload
from course_pages.lesson11.pictures import BLOCKS, ROWS, TOOK, Way, step_bars

HELD = {"weights": 2, "gradients": 2, "states": 12}
FLOW = {("weights", "forward"): 2, ("backward", "gradients"): 2, ("states", "update"): 12, ("update", "weights"): 3}


def test_what_crosses_the_line_is_drawn_in_orange():
    picture = offload.the_cut(FLOW, HELD, caption="c")
    (axes,) = picture.figure.axes
    colors = {text.get_text(): text.get_color() for text in axes.texts if text.get_text().endswith("Ψ")}
    assert colors["3Ψ"] == offload.SERIES[1] != colors["12Ψ"]
    assert {"weights, 2Ψ", "states, 12Ψ", "update"} <= {text.get_text() for text in axes.texts}


@pytest.mark.parametrize("way", get_args(Way))
def test_a_row_does_one_thing_at_a_time_and_all_of_it(way):
    bars = step_bars(way, TOOK, steps=3)
    for row in range(4):
        spans = sorted((bar.start, bar.end) for bar in bars if ROWS[bar.work] == row)
        assert all(before[1] <= after[0] + 1e-9 for before, after in zip(spans, spans[1:]))
    for work in ROWS:
        own = [bar for bar in bars if bar.work == work]
        late = way == "one step late" and work == "weights"  # the last step's are still to come
        assert sum(bar.end - bar.start for bar in own) == pytest.approx((2 if late else 3) * TOOK[work])


@pytest.mark.parametrize("way", get_args(Way))
def test_nothing_begins_before_what_it_needs(way):
    bars = step_bars(way, TOOK, steps=3)

    def span(work, step):
        own = [bar for bar in bars if (bar.work, bar.step) == (work, step)]
        return min(bar.start for bar in own), max(bar.end for bar in own)

    for step in range(3):
        assert span("update", step)[0] >= span("gradients", step)[1] >= span("backward", step)[1]
        assert span("gradients", step)[0] >= span("backward", step)[0] + TOOK["backward"] / BLOCKS
    needed = 2 if way == "one step late" else 1
    for step in range(needed, 3):
        assert span("forward", step)[0] >= span("weights", step - needed)[1]
    if needed == 2:
        for step in range(2):  # a step waits for its own gradients before it brings weights home
            assert span("weights", step)[0] >= span("gradients", step + 1)[1]
        assert span("update", 0)[1] > span("forward", 1)[0], "step 1 runs while step 0 is being applied"


def test_each_way_is_faster_than_the_one_above():
    ends = [max(bar.end for bar in step_bars(way, TOOK) if bar.work == "backward") for way in get_args(Way)]
    assert ends[0] == pytest.approx(2 * 3.0 + 1.4 + 2.0 + 1.4) and ends[0] > ends[1] > ends[2]
    picture = offload.step_timeline(caption="c")
    assert f"sent as soon as made, {ends[1]:.3g}" in picture.alt
    for axes, way in zip(picture.figure.axes, get_args(Way), strict=True):
        drawn = [path.get_extents() for each in axes.collections for path in each.get_paths()]
        assert [(box.x0, box.x1) for box in drawn] == [
            pytest.approx((bar.start, bar.end)) for bar in step_bars(way, TOOK)
        ]


def test_late_weights_travel_while_the_next_update_runs() -> None:
    """Gradients of step 1 are there and the processor is free: nothing else does its update wait for."""
    bars = step_bars("one step late", TOOK, steps=3)
    begin = min(bar.start for bar in bars if (bar.work, bar.step) == ("update", 1))
    arrived = max(bar.end for bar in bars if (bar.work, bar.step) == ("gradients", 1))
    free = max(bar.end for bar in bars if (bar.work, bar.step) == ("update", 0))
    assert begin == max(arrived, free)


def test_losses_stand_over_steps_and_over_seconds() -> None:
    runs = {"usual": [[3.0, 2.0], [3.0, 1.0]], "late": [[3.0, 2.5], [3.0, 2.5]]}
    picture = offload.losses_by_step_and_second(runs, {"usual": 500, "late": 5}, (2.0, 1.0), 2.985, caption="c")
    left, right = picture.figure.axes
    ends = [[np.asarray(line.get_xydata())[-1].tolist() for line in axes.lines[:2]] for axes in (left, right)]
    assert ends == [[[20.0, 1.5], [20.0, 2.5]], [[40.0, 1.5], [5 * 2.0 + 15, 2.5]]]
    assert "of 2 seeds: usual: 1.50 (from 1.00 to 2.00); late: 2.50" in picture.alt


def test_bars_of_tiers_are_shares_and_too_much_is_said() -> None:
    accounts = {"GPU": MemoryAccount(parameters=Bytes(30), gradients=Bytes(20)), "disk": MemoryAccount()}
    seconds = {"card": Seconds(2), "link": Seconds(0.5), "processor": Seconds(0)}
    picture = offload.fill_of_tiers(
        accounts, {"GPU": Bytes(40), "disk": Bytes(99)}, seconds, caption="Full.", alt="The GPU is too full."
    )
    left, right = picture.figure.axes
    fill, took = ([bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)] for axes in (left, right))
    assert fill[:2] == pytest.approx([0.75, 0.5]) and took == [2, 0.5, 0]
    assert [text.get_text() for text in left.texts] == ["too much"]
    assert [text.get_text() for text in right.texts] == ["2.00 s", "0.50 s", "0.00 s"]
