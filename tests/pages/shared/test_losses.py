"""Loss curves: what is drawn is what was given."""

import math

import pytest

from course_pages.shared import losses

RECIPES = {"fp32": [3.0] * 15 + [2.0] * 25, "fp16": [3.0] * 40}


def test_every_curve_is_drawn_whole_with_its_levels():
    curves, levels = {"sgd": [3.0, 2.0], "adam": [3.0, 1.5, 1.2]}, {"nothing": math.log(256), "floor": 0.8}
    picture = losses.loss_curves(curves, levels=levels, caption="c", alt="a")
    assert (picture.caption, picture.alt) == ("c", "a")
    (axes,) = picture.figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}  # type: ignore[arg-type]
    assert lines["sgd"] == [3.0, 2.0] and lines["adam"] == [3.0, 1.5, 1.2]
    assert [0.8, 0.8] in lines.values() and [math.log(256)] * 2 in lines.values()
    assert {text.get_text() for text in axes.texts} == {"nothing", "floor"}
    assert axes.get_legend() is not None
    assert 0.2 < axes.get_ylim()[0] < 0.8 and axes.get_ylim()[1] > math.log(256), "all is inside, and fills the height"
    sgd, adam = axes.lines[:2]
    assert sgd.get_linestyle() != adam.get_linestyle(), "told apart by colour alone"


def test_a_run_that_diverged_does_not_break_the_axes():
    figure = losses.loss_curves({"fp16": [3.0, math.inf, math.nan]}, caption="c", alt="a").figure
    assert figure.axes[0].get_ylim()[1] < 4 and figure.axes[0].get_legend() is None


def test_losses_are_differences_and_distances_are_as_given():
    runs = {"fp32": [3.0, 2.0], "bf16": [3.0, 2.5]}
    distances = {"fp32": [0.0, 4.0], "bf16": [0.0, 1.5]}
    left, right = losses.losses_and_distances(runs, distances, caption="c").figure.axes
    assert [list(line.get_ydata()) for line in left.lines] == [[0.0, 0.0], [0.0, 0.25]]  # type: ignore[arg-type]
    assert [list(line.get_ydata()) for line in right.lines] == [[0.0, 4.0], [0.0, 1.5]]  # type: ignore[arg-type]


def test_distances_are_from_the_first_run():
    picture = losses.losses_against_first(RECIPES, caption="c")
    left, right = picture.figure.axes
    assert left.lines[1].get_ydata()[-1] == pytest.approx(3.0)  # type: ignore[index]
    assert [line.get_ydata()[-1] for line in right.lines] == pytest.approx([0, 50])  # type: ignore[index]
    assert picture.caption == "c" and "fp16 +50.0 %" in picture.alt


def test_a_band_reaches_from_the_best_run_to_the_worst():
    runs = {"steady": [[3.0] * 20, [3.0] * 10 + [2.0] * 10], "wild": [[4.0] * 20, [1.0] * 20, [1.0] * 20]}
    picture = losses.loss_bands(runs, levels={"floor": 0.5}, caption="c")
    (axes,) = picture.figure.axes
    steady, wild, floor = (line.get_ydata() for line in axes.lines)
    assert (steady[-1], wild[-1], list(floor)) == (2.5, 2.0, [0.5, 0.5])  # type: ignore[index]
    bands = [band.get_paths()[0].get_extents() for band in axes.collections]
    assert [(band.y0, band.y1) for band in bands] == [(2, 3), (1, 4)]
    assert "steady ends between 2.00 and 3.00; wild ends between 1.00 and 4.00" in picture.alt
