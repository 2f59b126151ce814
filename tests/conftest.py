"""Fixtures and hooks of all tests. This module, imported first, makes the library's signatures run-time checks."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: many ranks share few cores
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("COURSE_RANKS_IMPORT", "tests.preloaded")  # once, and not in each rank of each test

import pytest
from jaxtyping import config, install_import_hook

import tests.typecheck  # noqa: F401  (the hook's generated code imports only `tests`)
from course_tools import TAUGHT
from tests import changed
from tests.plan import WAITING

install_import_hook(list(TAUGHT), "tests.typecheck.check")

OPENED = changed.Reads()


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


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--changed FILE`, as often as needed: `start.py test changed` gives it what git names."""
    parser.addoption("--changed", action="append", default=[], metavar="FILE", help="only tests that it can touch")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Note the files that a module of tests opens while it is collected."""
    OPENED.opened.clear()
    result = yield
    OPENED.of_collection.setdefault(collector.path, set()).update(OPENED.opened)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Note the files that a test opens, its fixtures included."""
    OPENED.opened.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Refuse a test that read a file of which `test changed` would not know."""
    result = yield
    if unknown := OPENED.undeclared(item.path):
        names = ", ".join(unknown[:8]) + (" …" if len(unknown) > 8 else "")
        pytest.fail(f"it read {names}: say so in a line `READS = (...)` of its file (tests/changed.py)", pytrace=False)
    return result


def _count(items: list[pytest.Item]) -> None:
    """Tell `python -m tests` how many tests wait, by marker, and how many do not."""
    place = os.environ.get("COURSE_TEST_COUNTS")
    if place and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        counts: dict[str, int] = dict.fromkeys(("default", *reversed(WAITING)), 0)
        for item in items:
            counts[next((name for name in counts if item.get_closest_marker(name)), "default")] += 1
        Path(place).write_text(json.dumps(counts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a change cannot touch; skip what this machine cannot run; begin with the files that take long.

    Else one worker would wait at the end for the other's last long test.
    """
    _count(items)
    changed.select(config, items)
    if hasattr(config, "workerinput"):
        long = {item.path for item in items if item.get_closest_marker("nightly")}
        items.sort(key=lambda item: item.path not in long)
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
