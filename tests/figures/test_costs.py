"""The pictures of what collectives cost: what is drawn are the numbers that were given or predicted."""

import pytest

from course_lib import predict
from course_lib.figures import costs
from course_lib.figures.costs import by_world_size, times_by_size
from course_lib.units import Seconds

FAST = predict.Link(Seconds(1e-6), 1e-11)


@pytest.fixture
def shown(monkeypatch):
    """Every figure that was presented, with its words."""
    figures = []
    monkeypatch.setattr(costs, "present", lambda figure, **words: figures.append((figure, words)))
    return figures


def test_costs_are_shown_with_a_line_or_points_for_each_algorithm(shown):
    by_world_size({"MB": {"ring": {2: 1.0, 4: 1.5}, "tree": {2: 1.0, 4: 2.0}}}, caption="c", alt="a")
    times_by_size({"ring": {4: 1e-3, 8: 2e-3}}, {"ring": {4: 1e-3}, "gloo": {8: 1e-3}}, caption="c", alt="a")
    (lines, words), (times, _) = shown
    assert [list(line.get_ydata()) for line in lines.axes[0].lines] == [[1.0, 1.5], [1.0, 2.0]]
    assert words == {"caption": "c", "alt": "a"}
    assert [list(line.get_ydata()) for line in times.axes[0].lines] == [[1e3, 2e3], [1e3], [1e3]]
    assert [text.get_text() for text in times.legends[0].get_texts()] == ["ring", "gloo"]


def test_busiest_ranks_takes_the_largest_of_each_algorithm(shown):
    counted = {2: [{"ring": (10**6, 2)}] * 2, 3: [{"ring": (10**6, 4)}, {"ring": (2 * 10**6, 3)}, {"ring": (0, 0)}]}
    costs.busiest_ranks(counted)
    megabytes, messages = shown[0][0].axes
    assert [list(axes.lines[0].get_ydata()) for axes in (megabytes, messages)] == [[1.0, 2.0], [2, 4]]
    assert "At 3: ring 2 MB in 4 messages" in shown[0][1]["alt"]


def test_predicted_times_are_those_of_the_model(shown):
    costs.four_algorithms(FAST, 8, [1000, 10**6])
    lines = shown[0][0].axes[0].lines
    assert len(lines) == 4
    assert list(lines[2].get_ydata()) == pytest.approx(
        [1e6 * predict.all_reduce(n, 8).seconds(FAST) for n in (1000, 10**6)]
    )
    assert {line.get_marker() for line in shown[0][0].legends[0].get_lines()} == {"none"}, "there are no points"
    assert "cross at 188 kB" in shown[0][1]["caption"]


def test_a_race_draws_a_line_for_each_algorithm_and_points_for_all(shown):
    measured = {name: {4: 1e-3, 4096: 2e-3} for name in ("direct", "manager", "ring", "tree", "backend")}
    costs.race(FAST, 4, measured)
    styles = [line.get_linestyle() for line in shown[0][0].axes[0].lines]
    assert (len(styles), styles.count("None")) == (9, 5)
    *_, tree, backend = shown[0][0].legends[0].get_lines()
    assert (tree.get_linestyle(), tree.get_marker()) == ("-.", "D"), "as it is drawn: a line and points"
    assert (backend.get_linestyle(), backend.get_marker()) == ("None", "o"), "points alone"


def test_many_ranks_says_where_the_lines_end(shown):
    costs.many_ranks(14 * 10**9, FAST, [2, 4])
    assert "direct from 0.14 to 0.42" in shown[0][1]["alt"]
    costs.one_message(FAST, {4: 1e-6, 8: 1e-6})
    assert len(shown[1][0].axes[0].lines) == 2
