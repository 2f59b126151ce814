"""The matmul explorer's tensors and messages, held against products on real ranks; its limits and its picture."""

from __future__ import annotations

import pytest
import torch

from course_kit import measure, ranks
from course_kit.units import Bytes
from course_lib.collectives.operators import all_gather, all_reduce, own_part, reduce_scatter
from course_pages.lesson08.explorer import ALONE, CUTS, RANKS, matmul_table, stops, told

DIMS = {"columns": 1, "rows": 0}
PLACES = [(first, second, p) for first in CUTS for second in (*CUTS, ALONE) for p in RANKS]


def taken(whole, lies):
    """What a rank has of a tensor that all could hold."""
    return whole if lies == "whole" else own_part(whole, DIMS[lies])


def follow(way):
    """Do what the stops say, one after the other; every rank must end with the product.

    Returns:
        The bytes attributed to what was sent.
    """
    torch.manual_seed(0)
    given = {each.name: torch.randn(each.rows, each.columns, dtype=torch.float64) for each in way if each.name in "XAB"}
    expected = given["X"] @ given["A"]
    expected = expected @ given["B"] if "B" in given else expected
    gathers = {"all-gather": lambda x: all_gather(x, 1), "reduce-scatter": lambda x: reduce_scatter(x, 1)}
    collectives = {"all-reduce": all_reduce, **gathers}
    have = taken(given["X"], way[0].lies)
    with measure.traffic() as sent:
        for stop in way[1:]:
            if stop.name in "AB":
                have = have @ taken(given[stop.name], stop.lies)
            if stop.sent:
                have = collectives[stop.behind](have)
    assert have.shape == expected.shape and (have - expected).abs().max() < 1e-9
    return sent.total_bytes


@pytest.mark.parametrize(("first", "second"), [place[:2] for place in PLACES if place[2] == 4])
def test_ranks_that_do_what_the_explorer_says_end_with_the_product(first: str, second: str) -> None:
    way = stops(first, second, 4)
    on_ranks = ranks.run(follow, way, world_size=4)
    assert [each / 2 for each in on_ranks] == [sum(stop.sent for stop in way)] * 4  # float64 there, 4 bytes here


def test_columns_then_rows_sends_nothing_between() -> None:
    way = stops("columns", "rows", 4)
    assert [(each.name, each.lies) for each in way] == [
        ("X", "whole"), ("A", "columns"), ("H", "columns"), ("B", "rows"), ("Y", "terms"), ("Y", "whole"),
    ]  # fmt: skip
    assert [each.sent for each in way if each.sent] == [Bytes(64 * 128 * 4 * 2 * 3 // 4)]
    assert told("columns", "rows", 4).endswith("sends nothing for H and 49 kB for Y (all-reduce): 49 kB in all.")
    totals = {(a, b): sum(each.sent for each in stops(a, b, 8)) for a, b, p in PLACES if p == 8 and b != ALONE}
    assert min(totals, key=lambda way: totals[way]) == ("columns", "rows")


@pytest.mark.parametrize(("first", "second", "p"), PLACES)
def test_the_table_holds_every_place(first: str, second: str, p: int) -> None:
    way = matmul_table()["ways"][f"{first},{second},{p}"]
    assert way["told"] == told(first, second, p)
    for stop, told_stop in zip(stops(first, second, p), way["stops"], strict=True):
        assert told_stop == [*stop[:5], f"{stop.sent:.0kB}" if stop.sent else ""]


def test_an_unknown_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="first='diagonals', second='rows': cut by one of columns, rows"):
        stops("diagonals", "rows", 4)
