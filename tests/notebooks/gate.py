"""The notebook gate: nbval with its holes closed. `python -m tests.notebooks [folders or notebooks]` runs it.

nbval executes every cell again and compares its outputs with the stored ones. By itself it accepts a cell that was
never run, a misspelt tag and a comment that switches checks off, waits for five seconds at most, loses what child
processes print, and numbers every cell In[1]. This plugin, and the way __main__.py starts it, changes that.
"""

from __future__ import annotations

from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from course_lib.build.kernel import kernel_environment
from course_lib.build.source import tags_of

OUTPUT_TIMEOUT_S = 30

_start_kernel = KernelManager.start_kernel


def _start_reproducible_kernel(self: KernelManager, **options: object) -> object:
    """Start a kernel in the environment in which `course build` ran it; keep the prints of its child processes."""
    return _start_kernel(self, env=kernel_environment(reproducible=True), **options)


def _execute_and_count(self: Any, cell_input: str, allow_stdin: bool | None = None) -> str:
    """Run a cell as Jupyter does. nbval keeps no history, so that each cell would be In[1], also in error reports."""
    return self.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)


def pytest_configure() -> None:
    """Every kernel of this test run starts in the build's environment and counts its cells."""
    from nbval.kernel import RunningKernel  # pytest wants to be the first to import its plugins

    KernelManager.start_kernel = _start_reproducible_kernel  # type: ignore[method-assign]
    RunningKernel.execute_cell_input = _execute_and_count  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Wait long enough for outputs, and do not compare those of cells tagged `varies`."""
    for item in items:
        prepare(item)


def prepare(item: Any) -> None:
    """The settings of one cell."""
    item.output_timeout = OUTPUT_TIMEOUT_S  # hard-coded to 5 s in nbval 0.11
    if "varies" in tags_of(item.cell):
        item.options["check"] = False
