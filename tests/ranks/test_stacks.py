"""What a file is called, once it is known to be a cell; and that looking for a tensor's name leaves nothing behind."""

import linecache
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

from course_kit import ranks
from course_kit.ranks._diagnosis import stacks
from course_kit.ranks._processes.packing import NotebookStateTracker

CELL = "<a cell of test_stacks>"


@pytest.fixture
def forgotten() -> Iterator[None]:
    yield
    linecache.cache.pop(CELL, None)
    stacks.CELLS.pop(CELL, None)
    stacks.know_cells({})


def in_a_rank() -> None:
    stacks.know_cells({CELL: ("cell [7]", "x = 1\n")})


def in_the_notebook() -> None:
    linecache.cache[CELL] = (6, None, ["x = 1\n"], CELL)
    NotebookStateTracker().news()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(("learn", "name"), [(in_a_rank, "cell [7]"), (in_the_notebook, "cell")])
def test_a_cell_is_no_library_even_if_it_was_taken_for_one(learn: Callable[[], None], name: str) -> None:
    assert stacks.is_library(CELL) and stacks.place_name(CELL) == CELL
    learn()
    assert not stacks.is_library(CELL), "the answer from before"
    assert stacks.place_name(CELL) == name


def reduced(whole: torch.Tensor) -> None:
    """Its caller's variables are looked at as well."""
    dist.all_reduce(whole)


def lives_on(here: bool) -> bool:
    """Whether a reduced tensor is still there when gloo's threads, too, have had time to let go."""
    whole = torch.ones(3)
    dist.all_reduce(whole) if here else reduced(whole)
    tensor, whole = weakref.ref(whole), None
    until = time.monotonic() + 2
    while tensor() is not None and time.monotonic() < until:
        time.sleep(0.01)
    return tensor() is not None


def locals_of_the_reader() -> list[str]:
    mine = locals()
    whole = torch.ones(3)
    dist.all_reduce(whole)
    return sorted(mine)


@pytest.mark.parametrize("here", [True, False], ids=["here", "by a function"])
def test_no_tensor_lives_on_because_its_name_was_looked_up(here: bool) -> None:
    assert ranks.run(lives_on, here, world_size=2) == [False] * 2


def test_what_the_reader_asked_for_stays_his() -> None:
    assert all("whole" in names for names in ranks.run(locals_of_the_reader, world_size=2))
