"""Pictures of experts: what they say in words is what the data says."""

import pytest
import torch

from course_lib.model.experts import ExpertConfig, find_places
from course_lib.parallel.mesh import Mesh
from course_pages.lesson13.pictures import by_seed, crowds, journey, queues, who_holds
from course_pages.lesson13.trials import Run


def test_queues_tell_who_gets_no_place() -> None:
    wanted = torch.tensor([[0, 1], [0, 1], [0, 2], [1, 0]])
    picture = queues(wanted, find_places(wanted, 3, 2), 3, 2, caption="Two places each.")
    assert picture.alt == "Queues of expert 0: 4, expert 1: 3, expert 2: 1; 2 places each; 3 choices are dropped."
    assert picture.png and "no limit" in queues(wanted, wanted >= 0, 3, None, caption="All.").alt


def test_holdings_are_told_rank_by_rank() -> None:
    config = ExpertConfig(width=8, hidden=16, experts=4)
    picture = who_holds(Mesh({"data": 2, "expert": 2, "tensor": 2}), config, 64, caption="Eight ranks.")
    assert "rank 5: experts 0 to 1, hidden features 8 to 15, tokens 32 to 47" in picture.alt and picture.png
    with pytest.raises(ValueError, match="16 ranks"):
        who_holds(Mesh({"expert": 16}), config, 64, caption="Too many.")


def test_a_journey_ends_where_it_began() -> None:
    picture = journey(torch.tensor([[0, 3, 1], [3, 2, 3]]), 4, caption="There and back.")
    assert "6 tokens of 2 ranks" in picture.alt and "on rank 0: 2, rank 1: 4." in picture.alt and picture.png


def test_a_line_for_each_seed_and_its_end_in_words() -> None:
    panels = {
        "loss": {"alone": [[3.0, 2.0], [3.0, 2.5]], "balanced": [[3.0, 1.0]]},
        "share (%)": {"alone": [[90.0, 20.0]]},
    }
    picture = by_seed(panels, levels={"loss": {"letters": 2.9}}, every=20, caption="Two panels.")
    assert "loss, alone: 2 to 2.5 at last; loss, balanced: 1 to 1 at last; share (%), alone: 20 to 20" in picture.alt
    assert picture.png


def test_crowds_have_no_share_where_there_are_no_experts() -> None:
    runs = {"nothing": [Run([3.0, 2.5], [], [], [])], "experts": [Run([3.0, 2.0], [0.9] + [0.5] * 10, [0.8, 0.3], [])]}
    picture = crowds(runs, 2.985, caption="Loss and crowd.")
    assert "nothing: 2.5 to 2.5" in picture.alt and "share (%), experts: 50 to 50 at last" in picture.alt
    assert "share (%), nothing" not in picture.alt and picture.png
