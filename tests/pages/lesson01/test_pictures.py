"""Pictures of formats: what is drawn are the formats' own numbers, and each picture is told in words."""

import math

import pytest

from course_lib.numerics import BF16, FP4_E2M1, FP6_E2M3, FP16
from course_pages.lesson01 import pictures as figures


def test_number_lines_draw_every_number_once():
    assert figures.values_up_to(FP4_E2M1, 8.0) == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    (axes,) = figures.number_lines((FP4_E2M1, FP6_E2M3), 0.25, 8.0, caption="c").figure.axes
    assert [len(ticks.get_segments()) for ticks in axes.collections] == [7, 30]  # type: ignore[attr-defined]


def test_the_beginning_of_a_sum_is_drawn_up_to_where_the_lowest_ends():
    curves = {"fp32": [i / 10 for i in range(11)], "bf16": [0.0, 0.1, 0.2, 0.25] + 7 * [0.25]}
    whole, zoom = figures.running_values(curves, caption="c", first=4).figure.axes
    assert zoom.get_xlim() == (0, 4) and zoom.get_ylim() == (0, 1.15 * 0.25)
    assert list(zoom.get_yticks()) == [0, 2**-4, 2**-3, 2**-2]
    assert [list(line.get_ydata()) for line in zoom.lines[:2]] == [list(v) for v in curves.values()]  # type: ignore[arg-type]
    assert len(whole.texts) == 2


def test_bars_reach_from_the_smallest_to_the_largest_number():
    (axes,) = figures.range_and_precision((FP16, BF16), caption="c").figure.axes
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]  # type: ignore[attr-defined]
    assert ends[0][0] == pytest.approx(math.log10(2**-24)) and ends[1][1] == pytest.approx(math.log10(65504))
    assert {text.get_text() for text in axes.texts} == {"eps = 2$^{-10}$", "eps = 2$^{-7}$"}


def test_relative_error_is_flat_between_the_ends():
    at = dict(zip(range(-32, 33), figures.worst_relative_error(FP16, range(-32, 33)), strict=True))
    assert at[-14] == at[0] == at[15] == 2**-11
    assert at[-15] == 2**-10 and at[-30] == 1.0 and math.isnan(at[16])


def test_names_at_the_ends_of_lines_do_not_overlap():
    curves = {"a": [0, 1.0], "b": [0, 1.001], "c": [0, 0.999], "d": [0, 0]}
    figure = figures.running_values(curves, caption="c", xlabel="steps").figure
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 4
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
