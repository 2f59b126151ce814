"""The restart explorer: who reads what, what is lost, its sentence and its picture, without a browser."""

from __future__ import annotations

import itertools

import pytest

from course_pages.lesson15 import elsewhere
from course_pages.lesson15.explorer import SAMPLES, SCHEMES, WORLDS, RestartExplorer, dealt


@pytest.mark.parametrize(("scheme", "world_size"), [*itertools.product(SCHEMES, WORLDS)])
def test_an_epoch_that_nobody_stops_has_every_sample_once(scheme: str, world_size: int) -> None:
    assert sorted(sum(dealt(scheme, world_size), [])) == list(range(SAMPLES))


def test_by_function_nothing_is_ever_lost_and_by_the_others_only_a_change_of_ranks_loses() -> None:
    for scheme, before, after, step in itertools.product(SCHEMES, WORLDS, WORLDS, range(7)):
        explorer = RestartExplorer(scheme=scheme, world_before=before, world_after=after, step=step)
        harmless = scheme == "by function" or before == after or step == 0
        if harmless:
            assert explorer.lost == explorer.twice == []
        elif 0 < step < 6:
            assert bool(explorer.lost) == (after > before) and bool(explorer.twice) == (after < before)


@pytest.mark.skipif(not elsewhere.installed("torchdata"), reason="torchdata is not installed")
@pytest.mark.parametrize("after", [1, 2, 4])
def test_by_stride_is_what_the_library_does(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """48 samples, two ranks of which each read 8: the loader of torchdata loses and repeats as many."""
    monkeypatch.setattr(elsewhere, "SAMPLES", SAMPLES)
    outcome = elsewhere.restart("torchdata", after)
    explorer = RestartExplorer(world_after=after)
    assert (len(explorer.lost), len(explorer.twice)) == outcome[:2]


def test_the_picture_has_a_row_for_the_epoch_and_for_each_rank() -> None:
    (axes,) = RestartExplorer()._picture(caption="c", alt="a").figure.axes
    rows = ["the epoch", "before: rank 0", "before: rank 1", "after: rank 0"]
    assert [label.get_text() for label in axes.get_yticklabels()][:4] == rows
