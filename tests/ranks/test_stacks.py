"""What a file is called: once it is known to be a cell, it is one, whatever was said of it before."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator

import pytest

from course_kit.ranks._diagnosis import stacks
from course_kit.ranks._processes.packing import NotebookStateTracker

CELL = "<a cell of test_stacks>"


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize(("learn", "name"), [(in_a_rank, "cell [7]"), (in_the_notebook, "cell")])
def test_a_cell_is_no_library_even_if_it_was_taken_for_one(learn: Callable[[], None], name: str) -> None:
    assert stacks.is_library(CELL) and stacks.place_name(CELL) == CELL
    learn()
    assert not stacks.is_library(CELL), "the answer from before"
    assert stacks.place_name(CELL) == name
