"""Fixtures of the tests that run labs' cells in this process."""

from __future__ import annotations

import gc
import importlib
import os

import pytest

from course_kit.checks import check
from course_kit.own_time import OwnTime
from tests import preloaded  # noqa: F401  (now: no single test is what reads all of the library)


def freeze_imported() -> None:
    """Freeze imported objects, as ranks do: checks that weigh an answer go through all objects several times.

    Most objects are imported modules', which no answer has made. Freezing them saves a tenth of a second for each look.
    """
    for name in ("tests.preloaded", "nbgrader.preprocessors"):  # imported now, since later imports would not be frozen
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


little_to_look_through = pytest.fixture(scope="module", autouse=True)(freeze_imported)


@pytest.fixture(scope="session", autouse=True)
def hashes_that_differ() -> None:
    """Let ranks hash texts as they do for a student, also where the hash seed is fixed."""
    os.environ.pop("PYTHONHASHSEED", None)


class Hurried(OwnTime):
    """A clock on which no limit is longer than 3 s."""

    def left_s(self, limit_s: float) -> float:
        """Seconds that are left of a limit, or of 3 s."""
        return super().left_s(min(limit_s, 3.0))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give an answer that does not end 3 s at most, many times the time of others; students' checks wait longer."""
    monkeypatch.setattr(check, "OwnTime", Hurried)
