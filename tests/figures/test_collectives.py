"""The pictures of collectives: their data are pure functions."""

import pytest
from matplotlib.patches import Rectangle

from course_lib.figures.collectives import (
    BEFORE_AND_AFTER,
    draw_before_and_after,
    draw_film,
    draw_rounds,
    draw_two_passes,
    two_passes,
)
from course_lib.ranks import schedules


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_two_passes_end_with_every_sum_on_every_rank(world_size):
    everyone = set(range(world_size))
    (_, before), (_, scattered), (_, gathered) = two_passes(world_size)
    assert all(part == {rank} for rank, parts in enumerate(before) for part in parts)
    assert [parts.count(everyone) for parts in scattered] == [1 if world_size > 1 else len(everyone)] * world_size
    assert all(part == everyone for parts in gathered for part in parts)


def test_each_cell_is_drawn_with_one_stripe_for_each_summand():
    figure = draw_two_passes(3)
    drawn = [len([p for p in axes.patches if isinstance(p, Rectangle)]) for axes in figure.axes]
    assert drawn == [9 + 9, 6 + 3 * 3 + 9, 9 * 3 + 9]  # stripes, and one outline for each of the 9 cells


def arrows(axes):
    return [text for text in axes.texts if getattr(text, "arrow_patch", None)]


def test_rounds_draw_one_arrow_for_each_message():
    plans = {name: [schedules.ALL_REDUCE[name](4, rank) for rank in range(4)] for name in schedules.ALL_REDUCE}
    figure = draw_rounds(plans)
    assert {axes.get_title(): len(arrows(axes)) for axes in figure.axes} == {
        "direct": 12, "manager": 6, "ring": 24, "tree": 6,
    }  # fmt: skip


def test_before_and_after_keeps_what_there_is():
    """An all-to-all moves every box and makes none; a reduce-scatter and an all-gather together are an all-reduce."""
    before, after = BEFORE_AND_AFTER["all-to-all"]
    assert sorted(sum(before, [])) == sorted(sum(after, []))
    assert after == [list(column) for column in zip(*before)]
    assert len(draw_before_and_after().axes) == len(BEFORE_AND_AFTER) == 6


def test_a_film_marks_what_has_just_arrived():
    figure = draw_film([("start", [[{0}], [{1}]]), ("end", [[{0, 1}], [{0, 1}]])], [set(), {(0, 0), (1, 0)}])
    assert [len(axes.lines) for axes in figure.axes] == [0, 2, 0, 0]
