"""Who sends how much to whom: the matrix is pure data, and each number in it is drawn."""

import pytest
from matplotlib.patches import Rectangle

from course_lib.accounts import TrafficAccount
from course_lib.figures.who_sends import between_nodes, matrix, who_sends_whom
from course_lib.units import Bytes


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


@pytest.mark.parametrize(
    ("accounts", "message"),
    [([], "0 accounts"), (ring(17, 1), "17 accounts"), ([TrafficAccount(bytes_to={1: Bytes(3)})], "rank 1")],
)
def test_what_cannot_be_drawn_is_refused(accounts, message):
    with pytest.raises(ValueError, match=message):
        matrix(accounts)


def test_there_is_room_for_three():
    with pytest.raises(ValueError, match="4 matrices"):
        who_sends_whom(dict.fromkeys("abcd", ring(2, 1)), caption="c")
