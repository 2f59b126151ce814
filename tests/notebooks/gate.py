"""The notebook gate: nbval with its holes closed. `python -m tests.notebooks [folders or notebooks]` runs it.

nbval executes every cell again and compares its outputs with the stored ones. By itself it accepts a cell that was
never run, a misspelt tag and a comment that switches checks off, waits for five seconds at most, loses what child
processes print, and numbers every cell In[1]. This plugin, and the way it starts nbval, changes that.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager

from course_lib.build.guards import output_complaints, source_complaints
from course_lib.build.kernel import kernel_environment
from course_lib.build.source import tags_of

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = (
    "--nbval",
    "--nbval-current-env",  # whatever kernel a notebook names, take this Python
    "--nbval-sanitize-with", str(Path(__file__).with_name("nbval_sanitize.cfg")),
    "--nbval-cell-timeout", "120",
    "--nbval-kernel-startup-timeout", "120",
    "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"),
    "--timeout", "600",
)  # fmt: skip
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
    """Refuse notebooks whose outputs nbval could not or would not compare; do not compare cells tagged `varies`.

    Raises:
        pytest.UsageError: lists what is wrong, cell by cell.
    """
    bad = [text for path in sorted({item.path for item in items}) for text in _complaints(path)]
    if bad:
        raise pytest.UsageError("notebooks that cannot be compared:\n" + "\n".join(bad))
    prepare(items)


def prepare(items: list[pytest.Item]) -> None:
    """Wait long enough for outputs, and do not compare those of cells tagged `varies`."""
    for item in items:
        item.output_timeout = OUTPUT_TIMEOUT_S  # type: ignore[attr-defined]  # hard-coded to 5 s in nbval 0.11
        if "varies" in tags_of(item.cell):  # type: ignore[attr-defined]
            item.options["check"] = False  # type: ignore[attr-defined]


def _complaints(path: Path) -> list[str]:
    notebook = nbformat.read(path, as_version=4)
    return [f"{path.name}: {text}" for text in source_complaints(notebook) + output_complaints(notebook, ROOT)]


def run(arguments: list[str]) -> int:
    """Run the gate in this process: `arguments` are pytest's; all lessons and solved labs, unless they name any."""
    named = any(Path(argument.split("::")[0]).exists() for argument in arguments)
    everything = [] if named else [str(ROOT / "lessons"), str(ROOT / "solutions")]
    return pytest.main([*OPTIONS, *arguments, *everything], plugins=[sys.modules[__name__]])
