"""The ring explorer's states, its limits and its picture, without a browser."""

from __future__ import annotations

from itertools import accumulate

import pytest

from course_lib import predict
from course_pages.lesson06.explorer import RingExplorer, ring_frames, ring_table


@pytest.mark.parametrize("p", range(2, 9))
def test_a_ring_ends_with_everything_everywhere_after_each_rank_sent_its_share(p: int) -> None:
    frames = ring_frames(p)
    everyone = set(range(p))
    assert len(frames) == 2 * p - 1
    assert all(part == {rank} for rank, parts in enumerate(frames[0].holding) for part in parts)
    assert [parts.index(everyone) for parts in frames[p - 1].holding] == list(range(p))
    assert all(part == everyone for parts in frames[-1].holding for part in parts)
    for step, frame in enumerate(frames[1:], 1):
        assert sorted(source for source, *_ in frame.arrived) == list(range(p))
        assert all(to == (source + 1) % p for source, to, *_ in frame.arrived)
        assert {added for *_, added in frame.arrived} == {step < p}


def test_a_frame_worked_out_by_hand() -> None:
    frame = ring_frames(3)[1]
    assert frame.arrived == ((2, 0, 1, True), (0, 1, 2, True), (1, 2, 0, True))
    assert frame.holding == [[{0}, {0, 2}, {0}], [{1}, {1}, {0, 1}], [{1, 2}, {2}, {2}]]


@pytest.mark.parametrize("p", range(2, 9))
def test_the_table_holds_every_frame_and_what_was_sent(p: int) -> None:
    ring, frames = ring_table()["rings"][str(p)], ring_frames(p)
    for told, frame in zip(ring["frames"], frames, strict=True):
        assert [[set(part) for part in parts] for parts in told["holding"]] == frame.holding
        assert told["arrived"] == frame.arrived
    sent = accumulate(sum(source == 0 for source, *_ in frame.arrived) for frame in frames)
    assert ring["sent"] == pytest.approx([count / p for count in sent])
    assert ring["direct"] * 1000 * p == predict.all_reduce(1000 * p, p, "direct").bytes


@pytest.mark.parametrize("p", [2, 5, 8])
def test_the_picture_has_a_panel_for_each_state_and_marks_what_arrived(p: int) -> None:
    picture = RingExplorer(world_size=p)._picture(caption="c", alt="a")
    panels = [axes for axes in picture.figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels][:2] == ["start", "step 1: add"]
    assert [len(axes.lines) for axes in panels] == [0] + [p] * (2 * p - 2)


@pytest.mark.parametrize("p", [0, 1, 9])
def test_refuses_rings_that_it_cannot_draw(p: int) -> None:
    with pytest.raises(ValueError, match="2 to 8 ranks"):
        ring_frames(p)
