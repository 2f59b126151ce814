"""Shared by the tests that run labs' cells in this process."""

from __future__ import annotations

import gc
import importlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from course_kit.checks import check


@pytest.fixture(scope="module", autouse=True)
def little_to_look_through() -> Iterator[None]:
    """Checks that weigh an answer go through all objects of Python's, several times each: most are imported modules'.

    No answer has made those, so they stand aside, as they do in ranks. That is a tenth of a second for each look.
    """
    for name in ("tests.preloaded", "nbgrader.preprocessors"):  # what would be imported later, and not stand aside
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that does not end gets 3 s at most, many times what others take; students' checks wait longer."""
    hurried = vars(threading) | {"Timer": lambda seconds, stop: threading.Timer(min(seconds, 3.0), stop)}
    monkeypatch.setattr(check, "threading", SimpleNamespace(**hurried))
