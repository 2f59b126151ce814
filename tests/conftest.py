"""Fixtures and hooks of all tests. This module, imported first, makes the library's signatures run-time checks."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: many ranks share few cores
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("COURSE_RANKS_IMPORT", "tests.preloaded")  # once, and not in each rank of each test

import pytest
from jaxtyping import config, install_import_hook

import tests.typecheck  # noqa: F401  (the hook's generated code imports only `tests`)
from course_tools import TAUGHT

install_import_hook(list(TAUGHT), "tests.typecheck.check")


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Leave signatures unchecked, for tests of the library's own words about a wrong tensor."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def background() -> Iterator[None]:
    """Let the test's processes run in the background: nohup, a script's `&` and many CI systems have Ctrl-C ignored."""
    yield from _on_ctrl_c(signal.SIG_IGN)


@pytest.fixture
def terminal() -> Iterator[None]:
    """Let the test's processes hear Ctrl-C, as in a terminal, also where the tests themselves are in the background.

    Children inherit that Ctrl-C is ignored, and rightly so: a program in the background goes on when the one in front
    is interrupted.
    """
    yield from _on_ctrl_c(signal.default_int_handler)


def _on_ctrl_c(does: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, does)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_collection_finish() -> None:
    """Freeze imported objects, as ranks do: a tenth of all time would go into looking for garbage among them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that this machine cannot run, and say so; with two workers, files with slow tests come first.

    Else one worker would wait at the end for the other's last long test.
    """
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
