"""What is drawn of ZeRO is what its ranks hold, and one step of stage 3 as the library's units go through it."""

import pytest
from matplotlib.colors import to_hex

from course_kit.notebook.picture import PALETTE
from course_pages.lesson10 import pictures as zero


def tiles(axes, color):
    """(left, top, width) of the tiles of a colour."""
    boxes = [patch for patch in axes.patches if patch.get_fill() and to_hex(patch.get_facecolor()).upper() == color]
    return [(round(box.get_x(), 6), round(box.get_y() + 0.36), box.get_width()) for box in boxes]


@pytest.mark.parametrize(("precision", "widths"), [("mixed", (2, 2, 12)), ("fp32", (4, 4, 8))])
def test_each_stage_fills_what_a_rank_holds(precision, widths):
    picture = zero.who_holds_what(4, precision, caption="c")
    names = ("optimizer", "gradients", "parameters")
    for stage, axes in enumerate(picture.figure.axes):
        for place, name in enumerate(names):
            found, width = tiles(axes, PALETTE[name]), widths[2 - place]
            assert sum(each[2] for each in found) == pytest.approx(4 * width / (4 if stage > place else 1))
            if stage > place:  # each rank has another part, and together they have all
                assert len({left for left, _, _ in found}) == len({rank for _, rank, _ in found}) == 4


def test_titles_have_the_bytes():
    picture = zero.who_holds_what(4, caption="c")
    assert [axes.get_title(loc="left") for axes in picture.figure.axes] == [
        f"stage {stage}: {total}Ψ bytes on a rank" for stage, total in enumerate(("16", "7", "5.5", "4"))
    ]


def test_both_ways_send_the_same_and_end_the_same():
    """Each move does what its name says to the boards beside it."""
    for boards, moves in zero.WAYS.values():
        assert sorted(move.split("\n")[0].strip("-") for move in moves if "step" not in move) == ["all", "reduce"]
        assert all("w" in cell for row in boards[-1] for cell in row)
        for before, move, after in zip(boards, moves, boards[1:]):
            held = [[sum(map(bool, row)) for row in board] for board in (before, after)]
            assert held == {
                "r": [[3, 3, 3], [1, 1, 1]], "a": [[1, 1, 1], [3, 3, 3]], "s": [held[0], held[0]]
            }[move[0]]  # fmt: skip


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("gather", [0.3, 1.0, 2.5])
def test_units_are_there_when_they_run_and_lanes_do_one_thing_at_a_time(gather, prefetch):
    bars = zero.zero3_bars(5, gather, prefetch)
    for lane in (("gather", "scatter"), ("forward", "backward")):
        own = [bar for bar in bars if bar.work in lane]
        assert len(own) == (15 if "gather" in lane else 10)  # two gathers and a scatter: 3Ψ
        spans = sorted((bar.start, bar.end) for bar in own)
        assert all(before[1] <= after[0] + 1e-9 for before, after in zip(spans, spans[1:]))
    for work in ("forward", "backward"):
        for bar in (each for each in bars if each.work == work):
            came = [each.end for each in bars if each.work == "gather" and each.unit == bar.unit]
            assert max(end for end in came if end <= bar.start + 1e-9) <= bar.start
    assert max(count for _, count in zero.weights_held(bars)) == (2 if prefetch else 1)
    assert zero.weights_held(bars)[-1][1] == 0


def test_prefetch_hides_what_is_shorter_than_the_work():
    """In the forward pass only the first gather is waited for, and in the backward pass the first."""
    end = [max(bar.end for bar in zero.zero3_bars(8, 0.5, prefetch)) for prefetch in (False, True)]
    assert end[1] == pytest.approx(0.5 + 8 + 0.5 + 16 + 0.5)
    assert end[0] == pytest.approx(8 * 1.5 + 8 * 2.5 + 7 * 0.5 + 0.5)


def test_the_time_line_is_drawn():
    picture = zero.zero3_timeline(3, 0.5, caption="c")
    for axes, prefetch in zip(picture.figure.axes, (False, True), strict=True):
        bars = zero.zero3_bars(3, 0.5, prefetch)
        drawn = [path.get_extents() for each in axes.collections[: len(bars)] for path in each.get_paths()]
        assert [(box.x0, box.x1) for box in drawn] == [pytest.approx((bar.start, bar.end)) for bar in bars]
        assert axes.get_xlim() == picture.figure.axes[0].get_xlim()
