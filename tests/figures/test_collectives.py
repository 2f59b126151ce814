"""The picture of an all-reduce: its data is a pure function."""

import pytest
from matplotlib.patches import Rectangle

from course_lib.figures.collectives import draw_two_passes, two_passes


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
