"""The notebook gate: nbval with its holes closed. `python -m tests.notebooks [folders or notebooks]` runs it.

nbval executes every cell again and compares its outputs with the stored ones. By itself it accepts a cell that was
never run, a misspelt tag and a comment that switches checks off, waits for five seconds at most, loses what child
processes print, and numbers every cell In[1]. This plugin, and the way __main__.py starts it, changes that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager

from course_tools.author.guards import output_complaints, source_complaints
from course_tools.author.source import tags_of
from course_tools.kernel import kernel_environment

ROOT = Path(__file__).resolve().parents[2]
OUTPUT_TIMEOUT_S = 30

_start_kernel = KernelManager.start_kernel


def _start_reproducible_kernel(self: KernelManager, **options: object) -> object:
    """Start a kernel in the environment in which `course build` ran it; keep the prints of its child processes."""
    return _start_kernel(self, env=kernel_environment(reproducible=True), **options)


def _execute_and_count(self: Any, cell_input: str, allow_stdin: bool | None = None) -> str:
    """Run a cell as Jupyter does. nbval keeps no history, so that each cell would be In[1], also in error reports."""
    return self.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)


def a_second_time(start: Callable[..., Any]) -> Callable[..., Any]:
    """`start`, once more if the kernel died before any cell ran: it is told ports that were free a moment before, and
    on a busy machine another process may have taken one."""

    @functools.wraps(start)
    def started(*args: object, **options: object) -> Any:
        try:
            return start(*args, **options)
        except RuntimeError:
            return start(*args, **options)

    return started


def pytest_configure() -> None:
    """Every kernel of this test run starts in the build's environment and counts its cells."""
    from nbval import kernel  # pytest wants to be the first to import its plugins
    from nbval.kernel import RunningKernel

    KernelManager.start_kernel = _start_reproducible_kernel  # type: ignore[method-assign]
    kernel.start_new_kernel = a_second_time(kernel.start_new_kernel)
    RunningKernel.execute_cell_input = _execute_and_count  # type: ignore[method-assign]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse notebooks whose outputs nbval could not or would not compare, before anything runs.

    Raises:
        pytest.UsageError: lists what is wrong, cell by cell.
    """
    is_worker = hasattr(session.config, "workerinput")
    places = [Path(argument.split("::")[0]) for argument in session.config.args]
    if not is_worker and (bad := [text for path in notebooks(places) for text in complaints(path)]):
        raise pytest.UsageError("notebooks that cannot be compared:\n" + "\n".join(bad))


def notebooks(places: list[Path]) -> list[Path]:
    """The notebooks named, and those in the folders named."""
    found = {path for place in places for path in (place.rglob("*.ipynb") if place.is_dir() else [place])}
    return sorted(path for path in found if ".ipynb_checkpoints" not in path.parts)


def complaints(path: Path) -> list[str]:
    """What nbval would not notice about a notebook."""
    notebook = nbformat.read(path, as_version=4)
    return [f"{path.name}: {text}" for text in source_complaints(notebook) + output_complaints(notebook, ROOT)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Wait long enough for outputs, and do not compare those of cells tagged `varies`."""
    for item in items:
        prepare(item)


def prepare(item: Any) -> None:
    """The settings of one cell."""
    item.output_timeout = OUTPUT_TIMEOUT_S  # hard-coded to 5 s in nbval 0.11
    if "varies" in tags_of(item.cell):
        item.options["check"] = False
