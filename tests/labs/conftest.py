"""Shared by the tests that run labs' cells in this process."""

from __future__ import annotations

import gc
import importlib
import os

import pytest

from course_kit.checks import check
from course_kit.own_time import OwnTime


@pytest.fixture(scope="module", autouse=True)
def little_to_look_through() -> None:
    """Checks that weigh an answer go through all objects of Python's, several times each: most are imported modules'.

    No answer has made those, so they stand aside, as they do in ranks. That is a tenth of a second for each look.
    """
    for name in ("tests.preloaded", "nbgrader.preprocessors"):  # what would be imported later, and not stand aside
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def hashes_that_differ() -> None:
    """Ranks hash texts as they do for a student; whoever runs the tests may have fixed the seed."""
    os.environ.pop("PYTHONHASHSEED", None)


class Hurried(OwnTime):
    """A clock on which no limit is longer than 3 s."""

    def left_s(self, limit_s: float) -> float:
        """Seconds that are left of a limit, or of 3 s."""
        return super().left_s(min(limit_s, 3.0))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that does not end gets 3 s at most, many times what others take; students' checks wait longer."""
    monkeypatch.setattr(check, "OwnTime", Hurried)
