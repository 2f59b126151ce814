"""The pipeline explorer's orders, its moves and its picture, without a browser."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import traitlets

from course_kit.notebook import picture as style
from course_lib.pipeline.schedule import ORDERS, one_f_one_b, parse, simulate
from course_pages.lesson09.explorer import MICRO_BATCHES, STAGES, PipelineExplorer, pipeline_table

LATER = "F0 F1 BW0 BW1\nF0 F1 BW0 BW1"
"""1F1B on two ranks with rank 1's first backward pass one place later: GPipe."""


@pytest.mark.parametrize("name", ORDERS)
def test_the_table_holds_the_librarys_orders(name: str) -> None:
    for ranks in STAGES:
        for count in MICRO_BATCHES:
            told = pipeline_table()["orders"][name][ranks][count]
            if name == "interleaved" and count % ranks:
                assert f"{count} micro-batches on {ranks} ranks" in told["why"]
            else:
                assert parse(told, ORDERS[name](ranks, count).name) == ORDERS[name](ranks, count)


def test_what_stands_on_the_page_can_be_run() -> None:
    explorer = PipelineExplorer(stages=2, micro_batches=2)
    assert explorer.schedule_now == one_f_one_b(2, 2)
    explorer.moved = LATER
    assert explorer.schedule_now.actions == ORDERS["gpipe"](2, 2).actions
    assert explorer.schedule_now.name == "1f1b, moved"


@pytest.mark.parametrize("control", [{"stages": 4}, {"micro_batches": 4}, {"schedule": "zero-bubble"}])
def test_moves_are_forgotten_with_their_schedule(control: dict[str, object]) -> None:
    explorer = PipelineExplorer(stages=2, micro_batches=2)
    explorer.moved = LATER
    for name, value in control.items():
        setattr(explorer, name, value)
    assert explorer.moved == ""


def test_moves_that_cannot_be_are_refused() -> None:
    explorer = PipelineExplorer(stages=2, micro_batches=2)
    with pytest.raises(traitlets.TraitError, match="BW0 .* comes before F0: a backward pass needs"):
        explorer.moved = "F0 F1 BW0 BW1\nBW0 F0 F1 BW1"
    with pytest.raises(traitlets.TraitError, match="deadlock: rank 0 waits before BW0"):
        explorer.moved = "F0 BW0 F1 BW1\nF0 F1 BW0 BW1"
    assert explorer.moved == ""


def test_where_there_is_no_schedule_python_says_why() -> None:
    with pytest.raises(ValueError, match="needs a multiple of it, such as 8"):
        _ = PipelineExplorer(schedule="interleaved", micro_batches=6).schedule_now


@pytest.mark.parametrize("wrong", [{"stages": 5}, {"micro_batches": 0}, {"schedule": "2f2b"}])
def test_what_is_not_offered_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="choose one of"):
        PipelineExplorer(None, **wrong)


def test_show_sends_the_widget_with_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[SimpleNamespace] = []
    monkeypatch.setattr(style, "display", lambda data, **rest: sent.append(SimpleNamespace(data=data, **rest)))
    explorer = PipelineExplorer(schedule="interleaved")
    explorer.show()
    assert sent[0].data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    told = sent[0].metadata["image/png"]["alt"]
    assert f"done after {simulate(ORDERS['interleaved'](4, 8)).makespan:g} units of time, 16% of all time" in told
    assert "from rank 0 on: 5.5, 4.5, 3.5, 2.5" in told  # Korthikanti et al. 2022: p(1 + (p-1)/(pv)) on rank 0
    assert "white is waiting" in sent[1].data["text/html"]
