"""Pictures of blocks and sums: what is drawn is what was handed in, and each picture is told in words."""

import math

import pytest

from course_pages.shared import block_formats as figures


def test_a_block_draws_every_number_and_every_level():
    (axes,) = figures.block_on_grid([1.0, -2.2, 0.1], [1.0, -2.0, 0.0], [-2, -1, 0, 1, 2], caption="c").figure.axes
    levels, distances = (lines.get_segments() for lines in axes.collections)  # type: ignore[attr-defined]
    assert len(levels) == 5 and [abs(one[0][1] - one[1][1]) for one in distances] == pytest.approx([0, 0.2, 0.1])
    assert [list(line.get_ydata()) for line in axes.lines] == [[1.0, -2.2, 0.1], [1.0, -2.0, 0.0]]  # type: ignore[arg-type]


def test_four_elements_of_six_bits_fill_three_bytes():
    cells = figures.place_bits(6, 4)
    assert len({cell[:2] for cell in cells}) == len({cell[2:] for cell in cells}) == 24
    assert max(byte for byte, *_ in cells) == 2
    assert (0, 0, 0, 0) in cells and (0, 7, 1, 1) in cells and (2, 7, 3, 5) in cells
    (axes,) = figures.bit_layout(6, 4, caption="c").figure.axes
    at = {text.get_text(): text.get_position() for text in axes.texts}
    assert len(at) == 24 and at["0.0"][0] > at["0.5"][0] and at["0.0"][1] > at["3.5"][1]


def test_medians_are_those_of_their_stretch():
    middles, medians = figures.medians_by_size([4, 4.1, 4.2, 8], [1, 2, 9, 5], bins=2)
    assert middles == [5, 7] and medians == [2, 5]
    middles, medians = figures.medians_by_size([0, 10], [3, 4], bins=5)
    assert middles == [1, 9] and medians == [3, 4]


def test_names_of_points_stand_on_both_sides():
    picture = figures.error_against_bits({"mxfp8": (8.25, 30.3)}, {"fp8": (8, 31.5), "fp4": (4, 11.9)}, caption="c")
    figure = picture.figure
    figure.draw_without_rendering()
    boxes = {text.get_text(): text.get_window_extent() for text in figure.axes[0].texts}
    assert boxes["fp8"].x1 < boxes["mxfp8"].x0 and len(boxes) == 3
    assert [line.get_marker() for line in figure.axes[0].lines] == ["s", "o", "o"]


def test_an_error_of_zero_is_left_out_of_a_logarithmic_axis():
    (axes,) = figures.error_by_length([1, 2], {"exact": [0.0, 1e-3]}, [1e-2, 1e-2], caption="c").figure.axes
    assert list(axes.lines[0].get_ydata()) == [1e-2, 1e-2]  # type: ignore[arg-type]
    zero, other = axes.lines[1].get_ydata()  # type: ignore[misc]
    assert math.isnan(float(zero)) and other == 1e-3  # type: ignore[arg-type]
