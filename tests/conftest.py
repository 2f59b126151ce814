"""Shared by all tests. Importing it first makes every signature of the library a run-time check."""

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
    """Signatures are not checked: for tests of what the library itself says about a wrong tensor."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def background() -> Iterator[None]:
    """What the test starts is in the background: nohup, a script's `&` and many CI systems have Ctrl-C ignored."""
    yield from _on_ctrl_c(signal.SIG_IGN)


@pytest.fixture
def terminal() -> Iterator[None]:
    """What the test starts hears Ctrl-C, as in a terminal, also where the tests themselves are in the background.

    Children inherit that Ctrl-C is ignored, and rightly so: what runs in the background goes on when somebody
    interrupts the program in front.
    """
    yield from _on_ctrl_c(signal.default_int_handler)


def _on_ctrl_c(does: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, does)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_collection_finish() -> None:
    """What was imported stands aside, as it does in ranks: a tenth of all time goes into looking for its garbage."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and say so; where two work, files with slow tests come first.

    Else one of the two would wait at the end for the other's last long test.
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
