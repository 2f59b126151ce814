"""Run a notebook in a kernel of this very Python, wherever other kernels may be installed."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.output_widget import OutputWidget
from nbformat import NotebookNode
from traitlets import default

REPRODUCIBLE = {
    "OMP_NUM_THREADS": "1",  # the order of a sum must not depend on the number of cores
    "PYTHONHASHSEED": "0",
    "SOURCE_DATE_EPOCH": "1700000000",  # matplotlib stamps figures with it
    "CUDA_VISIBLE_DEVICES": "",  # stored outputs are those of a CPU
    "COLUMNS": "100",
    "TZ": "UTC",
}
"""Variables of a kernel's environment with which the same source gives the same outputs everywhere."""

UNWANTED = ("PYTEST_CURRENT_TEST", "MPLBACKEND", "PYTHONWARNINGS", "FORCE_COLOR", "NO_COLOR")
"""Variables that must not reach a kernel. With the first, ipykernel drops the prints of child processes."""


class ThisPython(KernelSpecManager):
    """Knows one kernel, the running Python's, under every name."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """The kernel of `sys.executable`."""
        return KernelSpec(resource_dir=str(RESOURCES), **get_kernel_dict())


class ThisPythonsKernels(AsyncKernelManager):
    """Starts, and shuts down, kernels of `sys.executable`."""

    @default("kernel_spec_manager")
    def _this_python(self) -> KernelSpecManager:
        return ThisPython()


class KeptOutputs(OutputWidget):
    """The outputs of an Output widget, kept for the notebook and not sent to the kernel.

    nbclient sends them on the socket where it awaits the cell's end, and now and then sleeps through that end (its
    issue 312). So the widget's `outputs` stays empty in the kernel; in Jupyter the list fills once the cell is over.
    """

    def sync_state(self) -> None:
        """Send nothing."""


def kernel_environment(*, reproducible: bool) -> dict[str, str]:
    """This process's environment, made fit for a kernel; with `reproducible`, also made the same everywhere."""
    inherited = {key: value for key, value in os.environ.items() if key not in UNWANTED}
    return inherited | (REPRODUCIBLE if reproducible else {})


@contextmanager
def _no_profile() -> Iterator[dict[str, str]]:
    """An empty IPython profile: a reader's start-up files must not end up in the outputs."""
    with tempfile.TemporaryDirectory(prefix="course-ipython-", ignore_cleanup_errors=True) as folder:
        yield {"IPYTHONDIR": folder}


def execute(
    notebook: NotebookNode,
    folder: Path,
    *,
    reproducible: bool,
    timeout_s: float = 300,
    on_cell: Callable[[int], None] = lambda index: None,
) -> None:
    """Run all cells of `notebook` in `folder` and store the outputs in it.

    Args:
        notebook: the notebook to run, changed in place.
        folder: the kernel's working directory.
        reproducible: one thread, no GPU, fixed hash seed (for outputs that are stored), or the machine as it is.
        timeout_s: limit of a single cell, in seconds.
        on_cell: called with a code cell's index in the notebook when it begins to run.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised and is not tagged `raises-exception`.
        nbclient.exceptions.CellTimeoutError: a cell took longer than `timeout_s`.
        nbclient.exceptions.DeadKernelError: the kernel's process died.
        RuntimeError: a callback of a widget raised; Jupyter would have shown it and gone on.
    """
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        kernel_manager_class=ThisPythonsKernels,
        timeout_func=lambda cell: timeout_s,  # its `timeout` wants a whole number
        startup_timeout=120,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
        on_cell_execute=lambda cell, cell_index: on_cell(cell_index),
    )
    client.widget_registry["@jupyter-widgets/output"] = {"OutputModel": KeptOutputs}
    with _no_profile() as profile:
        client.execute(
            env=kernel_environment(reproducible=reproducible) | profile,
            stdout=subprocess.DEVNULL,  # a kernel repeats there all that is in the notebook already
            stderr=subprocess.DEVNULL,
        )
    complain_about_callbacks(notebook)


def widget_state(notebook: NotebookNode) -> dict[str, dict]:
    """The stored widget models of a notebook, by model id."""
    widgets = notebook.metadata.get("widgets", {})
    return widgets.get("application/vnd.jupyter.widget-state+json", {}).get("state", {})


def complain_about_callbacks(notebook: NotebookNode) -> None:
    """Raise an error again that a callback raised inside an Output widget, which nbclient takes for success.

    Raises:
        RuntimeError: names the error.
    """
    for model in widget_state(notebook).values():
        for output in model["state"].get("outputs", []):
            if output["output_type"] == "error":
                raise RuntimeError(f"a widget's callback raised {output['ename']}: {output['evalue']}")
