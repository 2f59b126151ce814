"""Pictures of a grid of ranks."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.colors import to_rgba

from course_lib.parallel.mesh import Mesh
from course_pages.lesson12.pictures import groups_along, in_machines

CUBE = Mesh({"pipeline": 2, "data": 2, "tensor": 2})


def test_every_rank_is_drawn_once_along_each_axis_and_groups_are_told() -> None:
    picture = groups_along(CUBE, caption="c", ranks_per_node=4)
    for axes in picture.figure.axes:
        assert sorted(text.get_text() for text in axes.texts) == [str(rank) for rank in range(8)]
        assert len(axes.lines) == 4
        assert len(axes.patches) == 2  # machines
    assert [axes.get_title() for axes in picture.figure.axes] == ["along tensor", "along data", "along pipeline"]
    assert "along data: 0-2, 1-3, 4-6, 5-7" in picture.alt


def test_no_two_ranks_share_a_place() -> None:
    for axes in groups_along(Mesh({"pipeline": 4, "data": 3, "tensor": 4}), caption="c").figure.axes:
        places = [text.get_position() for text in axes.texts]
        distances = [abs(complex(*a) - complex(*b)) for i, a in enumerate(places) for b in places[:i]]
        assert len(places) == 48 and min(distances) > 0.1


@pytest.mark.parametrize(("machine", "machines"), [(4, 4), (8, 2)])
def test_each_machine_has_a_plate_with_its_ranks_on_it(machine: int, machines: int) -> None:
    mesh = Mesh({"pipeline": 2, "data": 2, "tensor": 4})
    colors = {"tensor": "red", "data": "green", "pipeline": "blue"}
    picture = in_machines(mesh, machine, 5, colors, caption="c", alt="a")
    (axes,) = picture.figure.axes
    at = {int(text.get_text()): text.get_position() for text in axes.texts if text.get_text().isdigit()}
    assert sorted(at) == list(range(16)) and len(axes.patches) == machines
    for number, plate in enumerate(axes.patches):
        box = plate.get_extents().transformed(axes.transData.inverted())
        assert [rank for rank in at if box.contains(*at[rank])] == list(range(number * machine, (number + 1) * machine))
    drawn = [(tuple(dots.get_facecolor()[0]), tuple(place)) for dots in list[Any](axes.collections)
             for place in dots.get_offsets()]  # fmt: skip
    met = {color: [rank for rank in at if (to_rgba(color), at[rank]) in drawn] for color in colors.values()}
    assert met == {"red": [4, 6, 7], "green": [1], "blue": [13]}
