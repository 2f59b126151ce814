"""The film's numbers, its limits and its picture, all without a browser."""

from __future__ import annotations

import pytest

from course_kit.units import Bytes
from course_lib.predict.chain import Chain, Moment
from course_pages.lesson03.explorer import FilmExplorer, film_table


def test_the_explorer_shows_a_chain_of_the_library():
    explorer = FilmExplorer(layers=12, every=3, ratio=2)
    assert explorer.chain == Chain(12, boundary_bytes=1, saved_bytes=2)
    explorer.ratio = 5
    assert explorer.chain.peak(explorer.every) == 4 + 3 * 5


@pytest.mark.parametrize(("layers", "ratio"), [(2, 1), (7, 3), (16, 1), (31, 2), (32, 20)])
def test_a_shorter_chains_film_is_the_longest_ones_without_its_last_layers(layers: int, ratio: int):
    table = film_table()
    for every in range(layers + 1):
        frames, end = Chain(layers, 1, ratio).film(every or None), 0
        rows = [row for row in table["films"][every] if row[1] < layers]
        for (number, layer, boundaries, inside), frame in zip(rows, frames, strict=True):
            phase, duration = table["phases"][number]
            expected = Moment(phase, layer, boundaries, inside, Bytes(boundaries + inside * ratio), end, duration)
            assert frame == expected
            end += duration
