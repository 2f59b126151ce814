"""The pictures of what collectives cost: what is drawn are the numbers that were given or predicted."""

import numpy as np
import pytest
from matplotlib.lines import Line2D

from course_kit.units import Seconds
from course_lib import predict
from course_pages.lesson06 import costs as costs

FAST = predict.Link(Seconds(1e-6), 1e-11)


def values(line: Line2D) -> list[float]:
    return np.asarray(line.get_ydata()).tolist()


def test_costs_have_a_line_or_points_for_each_algorithm():
    panels = {"MB": {"ring": {2: 1.0, 4: 1.5}, "tree": {2: 1.0, 4: 2.0}}}
    lines = costs.by_world_size(panels, caption="c", alt="a")
    assert [values(line) for line in lines.figure.axes[0].lines] == [[1.0, 1.5], [1.0, 2.0]]
    assert (lines.caption, lines.alt) == ("c", "a")
    assert (lines.figure.axes[0].get_ylabel(), lines.figure.axes[0].get_title()) == ("MB", ""), "the unit is the axis's"
    measured = {"ring": {4: 1e-3}, "gloo": {8: 1e-3}}
    times = costs.times_by_size({"ring": {4: 1e-3, 8: 2e-3}}, measured, caption="c", alt="a").figure
    assert [values(line) for line in times.axes[0].lines] == [[1e3, 2e3], [1e3], [1e3]]
    assert [text.get_text() for text in times.legends[0].get_texts()] == ["ring", "gloo"]


def test_busiest_ranks_takes_the_largest_of_each_algorithm():
    counted = {2: [{"ring": (10**6, 2)}] * 2, 3: [{"ring": (10**6, 4)}, {"ring": (2 * 10**6, 3)}, {"ring": (0, 0)}]}
    picture = costs.busiest_ranks(counted, caption="c")
    megabytes, messages = picture.figure.axes
    assert [values(axes.lines[0]) for axes in (megabytes, messages)] == [[1.0, 2.0], [2, 4]]
    assert "At 3: ring 2 MB in 4 messages" in picture.alt


def test_predicted_times_are_those_of_the_model():
    picture = costs.predicted_all_reduces(FAST, 8, [1000, 10**6], caption="c")
    lines = picture.figure.axes[0].lines
    assert len(lines) == 4
    assert values(lines[2]) == pytest.approx([1e6 * predict.all_reduce(n, 8).seconds(FAST) for n in (1000, 10**6)])
    assert [line.get_marker() for line in picture.figure.legends[0].get_lines()] == ["none"] * 4, "there are no points"
    assert "cross at 188 kB" in picture.alt


def test_a_line_for_each_algorithm_and_points_for_all_that_was_measured():
    measured = {name: {4: 1e-3, 4096: 2e-3} for name in ("direct", "manager", "ring", "tree", "backend")}
    figure = costs.measured_all_reduces(FAST, 4, measured, caption="c").figure
    styles = [line.get_linestyle() for line in figure.axes[0].lines]
    assert (len(styles), styles.count("None")) == (9, 5)
    *_, tree, backend = figure.legends[0].get_lines()
    assert (tree.get_linestyle(), tree.get_marker()) == ("-.", "D"), "as it is drawn: a line and points"
    assert (backend.get_linestyle(), backend.get_marker()) == ("None", "o"), "points alone"


def test_a_fitted_link_is_a_line_with_points():
    line, points = costs.fitted_link(FAST, {4: 1e-6, 8: 1e-6}, caption="c").figure.axes[0].lines
    assert (line.get_marker(), points.get_linestyle()) == ("None", "None")
    assert values(line) == pytest.approx([1e6 * FAST.seconds((1, n)) for n in (4, 8)])
