"""What is drawn of pipelines are the bars of their charts, all on one scale."""

import pytest
from matplotlib.colors import to_hex

from course_lib.pipeline.schedule import (
    Costs,
    dualpipe,
    interleaved,
    one_f_one_b,
    pipedream,
    simulate,
    zb_v,
    zero_bubble,
)
from course_pages.lesson09.pictures import COLORS, pipeline_charts

IDEAL, SLOW = (simulate(one_f_one_b(2, 3), Costs(*[each] * 3)) for each in (0.001, 0.0015))


def bars(axes):
    return [path.get_extents() for each in axes.collections for path in each.get_paths()]


def test_every_action_is_a_bar_where_it_took_place():
    picture = pipeline_charts({"ideal": IDEAL, "measured": SLOW}, caption="c")
    for axes, chart in zip(picture.figure.axes, (IDEAL, SLOW), strict=True):
        spans = [(rank, span) for rank, each in enumerate(chart.spans) for span in each]
        assert [(bar.x0, bar.x1) for bar in bars(axes)] == [
            (pytest.approx(1e3 * span.start), pytest.approx(1e3 * span.end)) for _, span in spans
        ]
        assert [(bar.y0 + bar.y1) / 2 for bar in bars(axes)] == pytest.approx([rank for rank, _ in spans])
        kinds = [to_hex(tuple(each.get_facecolor()[0])).upper() for each in axes.collections]  # type: ignore[arg-type]
        assert kinds == [COLORS[span.action.kind] for _, span in spans]
        assert [text.get_text() for text in axes.texts] == [str(span.action.micro_batch) for _, span in spans]


def test_charts_share_their_scale_and_say_how_idle_they_are():
    picture = pipeline_charts({"ideal": IDEAL, "measured": SLOW}, caption="c")
    above, below = picture.figure.axes
    assert above.get_xlim() == below.get_xlim()
    assert above.get_title(loc="left") == "ideal: 25% idle"  # (P-1)/(M+P-1) with 2 ranks and 3 micro-batches
    assert "ideal: 2 ranks as rows, done after 12 ms; idle are 25%, 25%" in picture.alt
    assert "measured: 2 ranks as rows, done after 18 ms" in picture.alt


@pytest.mark.parametrize(
    ("order", "names"),
    [(one_f_one_b(2, 2), "fb"), (zero_bubble(2, 2), "fBW"), (pipedream(2, 2), "fb")],  # a free update cannot be seen
)
def test_the_legend_names_what_is_seen(order, names):
    figure = pipeline_charts({"one": simulate(order)}, "units", 1, caption="c").figure
    assert [text.get_text()[0] for text in figure.legends[0].get_texts()] == list(names)


@pytest.mark.parametrize("order", [interleaved(2, 2), zb_v(2, 4), dualpipe(2, 4)])
def test_other_stages_of_a_rank_are_hatched(order):
    chart = simulate(order)
    axes = pipeline_charts({"one": chart}, "units", 1, caption="c").figure.axes[0]
    others = [span.action.stage != rank for rank, spans in enumerate(chart.spans) for span in spans]
    assert [each.get_hatch() == "////" for each in axes.collections] == others
    assert set(others) == {True, False}
