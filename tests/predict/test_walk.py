"""A reader who follows a formula through the files turns few pages: how often a call returns to a file that it left.

Counted are the first entries of functions, in the order of a call. Setup's and configs' answers are values, units and
accounts are results, and the ledger is a pencil: nobody leaves a page for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Setup

ROOM = Path(predict.__file__).parent
VALUES = {ROOM / "setup.py", ROOM / "lifetimes" / "ledger.py"}
SMALL = GPTConfig(layers=4, width=32, heads=4, vocab_size=31, context=16)
LLAMA = Setup(zoo.LLAMA3_70B, 32, 8192, micro_batch=1, tensor=8, pipeline=4, data=2, context=2, precision="mixed")


def walk(call: Callable[[], Any]) -> list[str]:
    """The files that a call goes through, from page to page."""
    entered: dict[tuple[Path, str], None] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOM) and path not in VALUES:
            entered.setdefault((path, frame.f_code.co_qualname.split(".<locals>")[0]))

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [path.stem for path, _ in groupby(path for path, _ in entered)]


def returns(pages: list[str]) -> int:
    return len(pages) - len(set(pages))


def test_a_return_is_a_page_that_was_left() -> None:
    assert [returns(list(pages)) for pages in ("a", "ab", "aba", "abac", "ababa")] == [0, 0, 1, 1, 3]


@pytest.mark.parametrize(
    ("formula", "most", "setup"),
    [
        (predict.rank_traffic, 2, Setup(SMALL, 8, tensor=2, data=2)),
        (predict.rank_traffic, 2, Setup(SMALL, 8, tensor=2, pipeline=2, data=2, context=2, zero=1)),
        (predict.rank_traffic, 2, LLAMA.with_(sequence_parallel=True)),
        (predict.rank_traffic, 2, Setup(zoo.DEEPSEEK_V3, 16, 4096, tensor=8, expert=8, data=2, recompute="full")),
        (predict.peak, 3, Setup(SMALL, 8)),
        (predict.peak, 3, Setup(SMALL, 8, recompute="full", optimizer="sgd")),
        (predict.peak, 3, Setup(SMALL, 8, micro_batch=3, precision="mixed", recompute="full")),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_traffic_and_peak_are_short_walks(formula: Callable[[Setup], Any], most: int, setup: Setup) -> None:
    pages = walk(lambda: formula(setup))
    assert returns(pages) <= most, pages
