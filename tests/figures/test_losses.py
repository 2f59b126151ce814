"""Loss curves: what is drawn is what was given."""

import math

from course_lib.figures.training import draw_loss_curves


def test_every_curve_is_drawn_whole_with_its_levels():
    figure = draw_loss_curves({"sgd": [3.0, 2.0], "adam": [3.0, 1.5, 1.2]}, {"nothing": math.log(256), "floor": 0.8})
    (axes,) = figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}  # type: ignore[arg-type]
    assert lines["sgd"] == [3.0, 2.0] and lines["adam"] == [3.0, 1.5, 1.2]
    assert [0.8, 0.8] in lines.values() and [math.log(256)] * 2 in lines.values()
    assert {text.get_text() for text in axes.texts} == {"nothing", "floor"}
    assert axes.get_legend() is not None and axes.get_ylim()[0] == 0
    sgd, adam = axes.lines[:2]
    assert sgd.get_linestyle() != adam.get_linestyle(), "told apart by colour alone"


def test_a_run_that_diverged_does_not_break_the_axes():
    figure = draw_loss_curves({"fp16": [3.0, math.inf, math.nan]})
    assert figure.axes[0].get_ylim()[1] < 4 and figure.axes[0].get_legend() is None
