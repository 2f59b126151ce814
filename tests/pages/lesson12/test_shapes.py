"""Numbers of ten shapes, their table, and pictures of steps."""

from __future__ import annotations

import pytest

from course_kit.accounts import TrafficAccount
from course_kit.measure.timeline import Event, RankTimeline
from course_kit.units import Bytes, Ratio, Seconds
from course_lib.pipeline.schedule import Action, Span
from course_pages.lesson12 import shapes
from course_pages.lesson12.shapes import SHAPES, Met, Numbers, Shape, ShapesTable, furthest, furthest_off, numbers_of
from course_pages.lesson12.step_pictures import budget, cube_step, look_of, trade

CUBE: Shape = (2, 2, 2)
F, BW = Action("F", 0, 0), Action("BW", 0, 0)


def account(rank: int) -> TrafficAccount:
    """Rank r sends 10 · r' + 1 bytes to each rank r'; connections are named by their ranks."""
    ends = {((("", rank)), ("", other)): Bytes(10 * other + 1) for other in range(8) if other != rank}
    return TrafficAccount(None, {}, {}, {}, {}, ends)  # type: ignore[arg-type]


def met(rank: int, late: float = 0.0) -> Met:
    """Of a rank that works for 3 of 4 seconds, or of one that begins late."""
    return Met(
        account(rank), Bytes(100 + rank), [Span(F, late, late + 1.0), Span(BW, late + 1, late + 3.0)], [2.0, 1.0]
    )


def test_there_are_ten_shapes_of_eight_ranks() -> None:
    assert len(SHAPES) == 10 and {shapes.mesh_of(shape).size for shape in SHAPES} == {8}


def test_bytes_belong_to_the_axis_that_leads_to_their_rank_and_idle_time_to_a_pipeline() -> None:
    found = numbers_of(CUBE, [met(rank, late=1.0 if rank >= 4 else 0.0) for rank in range(8)])
    assert found.sent == {"pipeline": 41, "data": 21, "tensor": 11} and found.sent_in_all == 73
    assert found.held == 100
    assert float(found.bubble) == pytest.approx(1 / 4)  # 3 of 4 seconds, on each of two stages
    assert numbers_of((1, 2, 4), [met(rank) for rank in range(8)]).bubble == 0


def test_the_loss_that_is_furthest_off_is_found_on_any_rank() -> None:
    ranks = [met(rank) for rank in range(8)]
    ranks[5].losses[1] = 1.25
    assert furthest(ranks, [2.0, 1.0]) == 0.25


def numbers(sent: int, held: int, bubble: float = 0.0) -> Numbers:
    return Numbers({"data": Bytes(sent), **({"pipeline": Bytes(sent)} if bubble else {})}, Bytes(held), Ratio(bubble))


FORMULA = {(1, 8, 1): numbers(1000, 4000), (2, 4, 1): numbers(500, 3000, 1 / 3), (4, 2, 1): numbers(200, 2000, 0.6)}
MEASURED = {(1, 8, 1): numbers(1010, 4000), (2, 4, 1): numbers(450, 3030, 0.4), (4, 2, 1): numbers(200, 2000, 0.6)}


def test_the_table_has_what_was_measured_before_what_was_predicted() -> None:
    text = repr(ShapesTable(FORMULA, MEASURED, dict.fromkeys(FORMULA, 5e-7)))
    assert "0 / 0" in text.splitlines()[1] and "40% / 33%" in text and "5e-07" in text
    assert text.splitlines()[1].count("–") == 3  # no pipeline, no tensor, no bubble
    assert "1 / 1" in text.splitlines()[1]


def test_the_worst_of_each_kind_is_named_with_its_shape() -> None:
    found = furthest_off(FORMULA, MEASURED)
    assert found == {"along data": (2, 4, 1), "along pipeline": (2, 4, 1), "held": (2, 4, 1), "idle": (2, 4, 1)}
    assert MEASURED[2, 4, 1].kinds == {"along data": 450, "along pipeline": 450, "held": 3030, "idle": 0.4}
    assert "idle" not in MEASURED[1, 8, 1].kinds


def record() -> RankTimeline:
    names = ["forward", "all_reduce along tensor", "recv along pipeline", "backward", "all_reduce along data", "update"]
    kinds = {True: "wait", False: "compute"}
    return RankTimeline(
        [
            Event(rank, kinds["along" in name], name, place / 10, (place + 1) / 10)  # type: ignore[arg-type]
            for rank in range(8)
            for place, name in enumerate(names)
        ]
        + [Event(0, "send", "all_reduce along data", 0.0, 0.5)]
    )


def test_a_step_has_a_row_for_each_rank_and_no_bar_for_what_goes_on_behind() -> None:
    picture = cube_step(record(), caption="c")
    (axes,) = picture.figure.axes
    assert len(axes.collections) == 8 * 6
    assert "waits along tensor 100 ms" in picture.alt and "8 ranks" in picture.alt
    assert look_of(Event(0, "compute", "compute", 0, 1)) is None


def test_a_shape_is_a_dot_in_a_ring() -> None:
    picture = trade(FORMULA, MEASURED, caption="c")
    (axes,) = picture.figure.axes
    assert len(axes.collections) == 2 * len(FORMULA)
    assert {text.get_text() for text in axes.texts} == {"1·8·1", "2·4·1, 33% idle", "4·2·1, 60% idle"}


def test_a_budget_is_one_bar() -> None:
    picture = budget({"products": Seconds(24), "bubble": Seconds(7), "rest": Seconds(29)}, caption="c")
    (axes,) = picture.figure.axes
    assert [bar.get_width() for bar in axes.patches] == [24, 7, 29]  # type: ignore[attr-defined]
    assert axes.get_xlim()[1] == 60 and "bubble 7.0 s" in picture.alt
