"""Pictures of experts: what they say in words is what the data says."""

import pytest
import torch

from course_lib.figures.experts import queues, rows_sent, who_holds
from course_lib.model.experts import ExpertConfig, find_places
from course_lib.parallel.dispatch import plan_dispatch
from course_lib.parallel.mesh import Mesh


def test_queues_tell_who_gets_no_place() -> None:
    wanted = torch.tensor([[0, 1], [0, 1], [0, 2], [1, 0]])
    picture = queues(wanted, find_places(wanted, 3, 2), 3, 2, caption="Two places each.")
    assert picture.alt == "Queues of expert 0: 4, expert 1: 3, expert 2: 1; 2 places each; 3 choices are dropped."
    assert picture.png and "no limit" in queues(wanted, wanted >= 0, 3, None, caption="All.").alt


def test_rows_are_those_of_the_plan() -> None:
    plan = plan_dispatch(torch.tensor([[[3, 1]], [[0, 4]]]), None)
    picture = rows_sent(plan, caption="Uneven.")
    assert picture.alt == "Rows from each rank to ranks 0 to 1: rank 0 sends 3, 1; rank 1 sends 0, 4." and picture.png


def test_holdings_are_told_rank_by_rank() -> None:
    config = ExpertConfig(width=8, hidden=16, experts=4)
    picture = who_holds(Mesh({"data": 2, "expert": 2, "tensor": 2}), config, 64, caption="Eight ranks.")
    assert "rank 5: experts 0 to 1, hidden features 8 to 15, tokens 32 to 47" in picture.alt and picture.png
    with pytest.raises(ValueError, match="16 ranks"):
        who_holds(Mesh({"expert": 16}), config, 64, caption="Too many.")
