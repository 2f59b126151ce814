"""The restart explorer: who reads what, what is lost, its sentence and its picture, without a browser."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from course_kit.notebook import picture as style
from course_pages.lesson15 import elsewhere
from course_pages.lesson15.explorer import SAMPLES, SCHEMES, WORLDS, RestartExplorer, dealt, restart_table


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


@pytest.mark.parametrize("wrong", [{"scheme": "by luck"}, {"world_after": 3}, {"step": 7}])
def test_what_is_not_offered_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="choose one of"):
        RestartExplorer(None, **wrong)


def test_a_table_is_no_burden_and_is_made_once() -> None:
    assert len(RestartExplorer().table) < 8_000 and restart_table() is restart_table()


def test_show_sends_the_widget_with_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[SimpleNamespace] = []
    monkeypatch.setattr(style, "display", lambda data, **rest: sent.append(SimpleNamespace(data=data, **rest)))
    explorer = RestartExplorer()
    explorer.show()
    assert sent[0].data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    told = sent[0].metadata["image/png"]["alt"]
    assert told.endswith("2 ranks make 2 steps, then 4 go on. Read by nobody: 16; read twice: 0.")
    (axes,) = explorer._picture(caption="c", alt="a").figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()][:4] == [
        "the epoch",
        "before: rank 0",
        "before: rank 1",
        "after: rank 0",
    ]
