"""`%%ranks` cells and `ranks.pull`, without a kernel (test_kernel.py has one)."""

from __future__ import annotations

import pytest

from course_kit import ranks
from course_kit.ranks import magic


def test_variables_last_from_cell_to_cell_and_can_be_pulled() -> None:
    magic.run_cell("2", "torch.manual_seed(rank)\nx = torch.ones(1) * rank\n")
    magic.run_cell("2", "dist.all_reduce(x)\nnoise = torch.rand(1)\n")
    assert [x.item() for x in ranks.pull("x")] == [1.0, 1.0]
    first, second = ranks.pull("noise")
    assert first != second  # the seeds of the first cell are still in force


def test_classes_of_a_cell_come_back_whole() -> None:
    magic.run_cell("2", "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\np = Point(rank)\n")
    assert [point.x for point in ranks.pull("p")] == [0, 1]


def test_a_mistake_keeps_the_variables_if_the_ranks_can_go_on() -> None:
    magic.run_cell("2", "kept = rank")
    with pytest.raises(ranks.RankFailure) as caught:
        magic.run_cell("2", "y = 1\nprint(undefined)", label="cell [7]")
    assert caught.value.verdict == "ranks 0 and 1 raised NameError: name 'undefined' is not defined"
    assert "cell [7] line 3, in <module>\n    print(undefined)" in caught.value.reports[0].traceback
    assert not hasattr(caught.value, "__notes__")
    assert ranks.pull("kept") == [0, 1]


def test_a_deadlock_replaces_the_ranks_and_says_so() -> None:
    magic.run_cell("2", "lost = rank")
    with pytest.raises(ranks.RankFailure) as caught:
        magic.run_cell("2", "if rank == 0:\n    dist.barrier()")
    assert "variables that earlier %%ranks cells made are gone" in caught.value._render_traceback_()[-1]
    with pytest.raises(NameError, match="rank 0 has no variable 'lost'; it has: torch, dist, rank, world_size"):
        ranks.pull("lost")


def test_what_cannot_be_pulled_says_why() -> None:
    magic.run_cell("2", "import threading\nlock = threading.Lock()")
    with pytest.raises(ValueError, match="'lock' cannot be shipped from rank 0: TypeError"):
        ranks.pull("lock")
    with pytest.raises(NameError, match="rank 0 has no variable 'missing'"):
        ranks.pull("missing")


def test_errors_of_syntax_are_the_notebooks() -> None:
    with pytest.raises(SyntaxError):
        magic.run_cell("2", "for x in")


@pytest.mark.parametrize("line", ["four", "2 3", "2 speed=9", "2 diagnose=yes", "2 timeout_s=x", "0", "65"])
def test_options_that_make_no_sense_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match="rank"):
        magic.run_cell(line, "pass")


def test_options_are_heeded() -> None:
    with pytest.raises(ranks.RankFailure, match="not done after 1 s"):
        magic.run_cell("2 timeout_s=1 diagnose=False", "import time\ntime.sleep(9)")
