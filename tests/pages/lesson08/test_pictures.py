"""The pictures of split products, blocks and rings: what is drawn is what lies on the ranks."""

from __future__ import annotations

import pytest
from matplotlib.patches import Rectangle

from course_lib.parallel.context import work
from course_pages.lesson08.explorer import stops
from course_pages.lesson08.pictures import BLOCK, INSIDE, WIDTHS, block_on_ranks, ring_in_time, split_product


def boxes(axes):
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


@pytest.mark.parametrize("p", [2, 4, 8])
def test_a_product_has_a_part_for_each_rank_and_a_word_for_each_message(p: int) -> None:
    way = stops("rows", "rows", p)
    picture = split_product(way, p, caption="c", alt="a")
    (axes,) = picture.figure.axes
    assert len(boxes(axes)) == sum(1 if each.lies == "whole" else p for each in way)
    messages = [text.get_text().split("\n")[0] for text in axes.texts if "\n" in text.get_text()]
    assert messages == ["reduce-scatter", "all-reduce"]
    drawn = sum(box.get_width() * box.get_height() for box in boxes(axes)[:p])  # X, cut by columns: the parts fill it
    assert drawn == pytest.approx(2.2**2 * (64 * 128) ** 0.5)


def test_a_block_shows_each_ranks_share_of_each_tensor_to_scale() -> None:
    picture = block_on_ranks(caption="c")
    for axes, (between, operators) in zip(picture.figure.axes, BLOCK.values(), strict=True):
        areas = [box.get_width() * box.get_height() / 0.8 for box in boxes(axes)]
        empty, filled = areas[::2], areas[1::2]  # behind each part stands the box of the whole
        assert empty[::4] == pytest.approx(list(WIDTHS.values()))
        for place, name in enumerate(WIDTHS):
            copies = 4 if between == "whole" and name not in INSIDE else 1
            assert sum(filled[4 * place : 4 * place + 4]) == pytest.approx(copies * WIDTHS[name])
        kept_by_rank_0 = sum(filled[::4]) / sum(empty[::4])
        assert kept_by_rank_0 == pytest.approx(0.4 if between == "whole" else 0.25)  # as the page measures
        assert [text.get_text() for text in axes.texts] == list(operators.values())


def test_a_ring_ends_when_the_slowest_rank_of_every_step_has_ended() -> None:
    orders = {order: work(order, 4) for order in ("plain", "zigzag")}
    picture = ring_in_time(orders, caption="c")
    for axes, (order, steps) in zip(picture.figure.axes, orders.items(), strict=True):
        assert sum(box.get_width() for box in boxes(axes)) == pytest.approx(sum(map(sum, steps)))
        end = max(box.get_x() + box.get_width() for box in boxes(axes))
        assert end == {"plain": 3.5, "zigzag": 2}[order] == sum(map(max, steps))
