"""The pipeline explorer's orders, its moves and its picture, without a browser."""

from __future__ import annotations

import pytest
import traitlets

from course_lib.pipeline.schedule import ORDERS, one_f_one_b, parse
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
