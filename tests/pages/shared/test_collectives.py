"""The pictures of collectives: their data are pure functions."""

import itertools

import pytest
from matplotlib.patches import Rectangle

from course_pages.shared.collectives import (
    BEFORE_AND_AFTER,
    all_reduce_in_two_passes,
    before_and_after,
    film_of_holdings,
    messages_by_round,
    two_passes,
)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_two_passes_end_with_every_sum_on_every_rank(world_size):
    everyone = set(range(world_size))
    (_, before), (_, scattered), (_, gathered) = two_passes(world_size)
    assert all(part == {rank} for rank, parts in enumerate(before) for part in parts)
    assert [parts.count(everyone) for parts in scattered] == [1 if world_size > 1 else len(everyone)] * world_size
    assert all(part == everyone for parts in gathered for part in parts)


def test_each_cell_is_drawn_with_one_stripe_for_each_summand():
    figure = all_reduce_in_two_passes(3, caption="c").figure
    drawn = [len([p for p in axes.patches if isinstance(p, Rectangle)]) for axes in figure.axes]
    assert drawn == [9 + 9, 6 + 3 * 3 + 9, 9 * 3 + 9]  # stripes, and one outline for each of the 9 cells


def arrows(axes):
    return [text for text in axes.texts if getattr(text, "arrow_patch", None)]


def test_rounds_draw_one_arrow_for_each_message():
    picture = messages_by_round(4, caption="c")
    assert {axes.get_title(): len(arrows(axes)) for axes in picture.figure.axes} == {
        "direct": 12, "manager": 6, "ring": 24, "tree": 6,
    }  # fmt: skip
    assert "Ring: 6 rounds" in picture.alt


def test_before_and_after_keeps_what_there_is():
    """An all-to-all moves every box and makes none; a reduce-scatter and an all-gather together are an all-reduce."""
    before, after = BEFORE_AND_AFTER["all-to-all"]
    assert sorted(itertools.chain(*before)) == sorted(itertools.chain(*after))
    assert after == [list(column) for column in zip(*before)]
    picture = before_and_after(caption="c")
    assert len(picture.figure.axes) == len(BEFORE_AND_AFTER) == 6
    assert "all-gather: before a, b, c; after a b c, a b c, a b c." in picture.alt


def test_a_film_marks_what_has_just_arrived():
    frames = [("start", [[{0}], [{1}]]), ("end", [[{0, 1}], [{0, 1}]])]
    picture = film_of_holdings(frames, [set(), {(0, 0), (1, 0)}], caption="c", alt="a")
    assert [len(axes.lines) for axes in picture.figure.axes] == [0, 2, 0, 0]
