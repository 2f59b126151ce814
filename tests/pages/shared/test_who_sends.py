"""Who sends how much to whom: the matrix is pure data, and each number in it is drawn."""

import sys

import pytest
import torch
import torch.distributed as dist
from matplotlib.patches import Rectangle

from course_kit import measure, ranks
from course_kit.accounts import TrafficAccount
from course_kit.units import Bytes
from course_lib.parallel.mesh import Mesh, process_groups
from course_pages.shared.who_sends import between_nodes, matrix, who_sends_whom


def ring(world_size: int, n_bytes: int) -> list[TrafficAccount]:
    return [TrafficAccount(bytes_to={(rank + 1) % world_size: Bytes(n_bytes)}) for rank in range(world_size)]


def test_rows_send_and_columns_receive():
    assert matrix(ring(3, 500)) == [[0, 500, 0], [0, 0, 500], [500, 0, 0]]


@pytest.mark.parametrize(("ranks_per_node", "crossing"), [(1, 4), (2, 2), (4, 0)])
def test_what_crosses_depends_on_who_shares_a_node(ranks_per_node, crossing):
    assert between_nodes(matrix(ring(4, 7)), ranks_per_node) == 7 * crossing


def test_each_link_has_its_number_and_each_pair_of_nodes_two_frames():
    everyone = [TrafficAccount(bytes_to={to: Bytes(9000) for to in range(4) if to != rank}) for rank in range(4)]
    picture = who_sends_whom({"ring": ring(4, 12_500), "everyone": everyone}, ranks_per_node=2, caption="c")
    figure = picture.figure
    assert [[text.get_text() for text in axes.texts] for axes in figure.axes] == [["12.5"] * 4, ["9"] * 12]
    frames = [[p for p in axes.patches if isinstance(p, Rectangle)] for axes in figure.axes]
    assert [len(each) for each in frames] == [2, 2]
    assert figure.axes[0].get_title() == "ring\n25 kB between nodes"
    assert picture.caption == "c"
    assert "everyone: 12 links carry something, the busiest rank sends 27 kB, and 72 kB go between" in picture.alt


def test_all_panels_share_one_scale():
    figure = who_sends_whom({"much": ring(2, 1000), "little": ring(2, 10)}, caption="c").figure
    assert [axes.images[0].get_clim() for axes in figure.axes] == [(0, 1000), (0, 1000)]


def in_groups(axes: dict[str, int], elements: int) -> TrafficAccount:
    """An all-reduce along the first axis; what happens before does not count."""
    groups, axis = process_groups(Mesh(axes)), next(iter(axes))
    dist.all_reduce(torch.ones(10), group=groups[axis])
    with measure.traffic() as sent:
        dist.all_reduce(torch.ones(elements), group=groups[axis])
    return sent


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counted by Linux's kernel only")
@pytest.mark.parametrize(("axes", "partner"), [({"slow": 2, "fast": 2}, 2), ({"fast": 2, "one": 1}, 1)])
def test_a_collective_is_observed_between_those_who_take_part_in_it(axes, partner):
    """A library collective tells nobody whom it sends to; the kernel does."""
    accounts = ranks.run(in_groups, axes, 25_000, world_size=2 * len(axes) if partner == 2 else 2)
    assert matrix(accounts) == [[0] * len(accounts)] * len(accounts)
    for sender, row in enumerate(matrix(accounts, observed=True)):
        assert row[sender ^ partner] == pytest.approx(100_000, rel=0.02)
        assert sum(row) == accounts[sender].observed_bytes
        assert sum(row) - row[sender ^ partner] < 1000
    assert who_sends_whom({"a": accounts}, observed=True, caption="c").alt.startswith("a: ")


def test_a_port_may_serve_connections_of_two_ranks():
    """The system gives out a port a second time where the other end is another one."""
    ends = [
        {("h:1", "h:9"): 5},
        {("h:9", "h:1"): 4, ("h:9", "h:7"): 0},
        {("h:1", "h:8"): 0, ("h:7", "h:9"): 3},
        {("h:8", "h:1"): 2},
    ]
    accounts = [TrafficAccount(observed_by_connection={pair: Bytes(n) for pair, n in each.items()}) for each in ends]
    assert matrix(accounts, observed=True) == [[0, 5, 0, 0], [4, 0, 0, 0], [0, 3, 0, 0], [0, 0, 2, 0]]
