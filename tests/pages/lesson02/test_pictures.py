"""The map of segments: every block where it lies, and the words that say what is free."""

from __future__ import annotations

from course_kit.units import Bytes
from course_lib.predict.allocator import CachingAllocator
from course_pages.lesson02.pictures import allocator_hill, segment_map

MIB = 2**20


def test_blocks_lie_where_they_are_and_words_say_what_is_free():
    card = CachingAllocator(40 * MIB)
    for number in range(10):
        card.allocate(number, 4 * MIB)
    for number in range(0, 10, 2):
        card.free(number)
    picture = segment_map(card, wanted=Bytes(8 * MIB), caption="Holes.")
    (axes,) = picture.figure.axes
    boxes = [(bar.get_x(), bar.get_width()) for bars in axes.containers for bar in bars]
    assert boxes == [(4 * n, 4) for n in range(5)] * 2 + [(0, 8)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["segment 1", "segment 2", "wanted"]
    assert "2 segments, together 40.00 MiB. In use are 20.00 MiB, free 20.00 MiB" in picture.alt
    assert "the largest free piece has 4.00 MiB. Wanted: 8.00 MiB." in picture.alt


def test_the_hill_of_an_allocators_history_adds_births_and_takes_deaths_away() -> None:
    sizes = [("alloc", 2), ("segment_alloc", 20), ("alloc", 3), ("free_requested", 2), ("free_completed", 2)]
    history = [{"action": action, "size": size * 2**20} for action, size in sizes]
    picture = allocator_hill(history, before=2**20)
    assert "over 3 births and deaths, from 1.0 MiB to a peak of 6.0 MiB" in picture.alt
