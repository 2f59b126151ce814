"""Pictures of a grid of ranks."""

from __future__ import annotations

import pytest

from course_lib.figures.cube import groups_along
from course_lib.parallel.mesh import Mesh

CUBE = Mesh({"pipe": 2, "data": 2, "tensor": 2})


def test_every_rank_is_drawn_once_along_each_axis_and_groups_are_told() -> None:
    picture = groups_along(CUBE, caption="c", ranks_per_node=4)
    for axes in picture.figure.axes:
        assert sorted(text.get_text() for text in axes.texts) == [str(rank) for rank in range(8)]
        assert len(axes.lines) == 4
        assert len(axes.patches) == 2  # machines
    assert [axes.get_title() for axes in picture.figure.axes] == ["along tensor", "along data", "along pipe"]
    assert "along data: 0-2, 1-3, 4-6, 5-7" in picture.alt


def test_no_two_ranks_share_a_place() -> None:
    for axes in groups_along(Mesh({"pipe": 4, "data": 3, "tensor": 4}), caption="c").figure.axes:
        places = [text.get_position() for text in axes.texts]
        distances = [abs(complex(*a) - complex(*b)) for i, a in enumerate(places) for b in places[:i]]
        assert len(places) == 48 and min(distances) > 0.1


@pytest.mark.parametrize(
    ("mesh", "ranks_per_node", "message"),
    [
        (Mesh({"data": 2}), None, "shows three axes"),
        (Mesh({"pipe": 2, "data": 2, "tensor": 8}), None, "1 to 4 ranks"),
        (CUBE, 2, "a layer of this mesh has 4 ranks"),
    ],
)
def test_what_has_no_room_is_refused(mesh: Mesh, ranks_per_node: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        groups_along(mesh, caption="c", ranks_per_node=ranks_per_node)
