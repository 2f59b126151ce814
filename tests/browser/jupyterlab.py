"""Drives a real JupyterLab in a real browser: its own settings, a free port, a random token, a fresh profile."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, Page, Playwright

from course_tools.kernel import execute

REPOSITORY = Path(__file__).parents[2]

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]  # fmt: skip

SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # or cells outside of the window are not drawn
    "docmanager-extension/plugin": {"autosave": False},
}

OPEN = """async (path) => {
    const app = window.jupyterapp; await app.restored;
    const panel = await app.commands.execute('docmanager:open', { path, factory: 'Notebook' });
    await panel.context.ready; await panel.sessionContext.ready; await panel.sessionContext.session.kernel.info;
    app.shell.activateById(panel.id); window.panel = panel;
}"""

RUN_ALL = """async (milliseconds) => {
    const late = new Promise((_, no) => setTimeout(() => no(new Error('cells ran out of time')), milliseconds));
    // After a cell that raises on purpose the command returns while later cells still run: queue behind them.
    const run = async () => {
        await window.jupyterapp.commands.execute('notebook:run-all-cells');
        await window.panel.sessionContext.session.kernel.requestExecute({ code: '' }).done;
    };
    await Promise.race([run(), late]);
    return window.panel.content.widgets.filter(cell => cell.model.type === 'code').map(cell => (
        { count: cell.model.executionCount, source: cell.model.sharedModel.getSource(),
          outputs: cell.model.outputs.toJSON(), tags: cell.model.metadata.tags ?? [] }));
}"""

EXECUTE = """async (code) => {
    const future = window.panel.sessionContext.session.kernel.requestExecute({ code });
    let text = '';
    future.onIOPub = ({ header, content }) => {
        if (header.msg_type === 'stream') text += content.text;
        if (header.msg_type === 'error') text += `${content.ename}: ${content.evalue}`;
    };
    await future.done; return text.trim();
}"""

CLOSE = """async () => {
    const panel = window.panel; await panel.sessionContext.shutdown();
    panel.context.model.dirty = false; panel.close(); panel.dispose();
}"""


def chromium_path() -> str | None:
    """The program that CHROMIUM names, or one on the PATH; None: Playwright's own download, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def launch(playwright: Playwright) -> Browser:
    """A headless Chromium. Its absence is an error: a skipped browser test looks like a passed one."""
    return playwright.chromium.launch(executable_path=chromium_path(), headless=True, args=FLAGS)


def executed(source: str) -> nbformat.NotebookNode:
    """A notebook of one cell, run, with the state of its widgets."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    execute(notebook, REPOSITORY, reproducible=False, timeout_s=60)
    return notebook


@contextlib.contextmanager
def serve(root: Path, scratch: Path) -> Iterator[str]:
    """JupyterLab serving `root` on loopback; yields the address, token included. All its files go to `scratch`."""
    for name, settings in SETTINGS.items():
        extension, plugin = name.split("/")
        folder = scratch / "settings" / "@jupyterlab" / extension
        folder.mkdir(parents=True)
        (folder / f"{plugin}.jupyterlab-settings").write_text(json.dumps(settings))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": root,
        "ServerApp.allow_root": True,
        "IdentityProvider.token": token,
        "LabApp.expose_app_in_browser": True,
        "LabApp.extension_manager": "readonly",
        "LabApp.news_url": None,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    flags = [f"--{name}={option}" for name, option in options.items()]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", *flags]
    with open(scratch / "jupyterlab.log", "wb") as log:
        server = subprocess.Popen(
            command, env=_environment(scratch), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _wait_until_up(server, f"http://127.0.0.1:{port}/api/status?token={token}", scratch / "jupyterlab.log")
            yield f"http://127.0.0.1:{port}/lab?token={token}&reset"
        finally:
            _stop(server)


def _environment(scratch: Path) -> dict[str, str]:
    """This process's environment, with every folder that Jupyter writes to in `scratch`, and ours on the path."""
    folders = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    jupyter = {f"JUPYTER_{name}": str(scratch / name.lower()) for name in folders}
    own_folders = {f"JUPYTERLAB_{name}_DIR": str(scratch / name.lower()) for name in ("SETTINGS", "WORKSPACES")}
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"IPYTHONDIR": str(scratch / "ipython"), "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {**inherited, **jupyter, **own_folders, **own}


def _wait_until_up(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(address, timeout=2).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not come up:\n{log.read_text()[-3000:]}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Ask first: a clean shutdown also ends the kernels."""
    server.terminate()
    try:
        server.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@dataclass
class JupyterLab:
    """One JupyterLab page in which notebooks are opened one after the other.

    Attributes:
        page: the browser's page.
        root: the folder that is served; write notebooks here.
        page_errors: uncaught JavaScript exceptions so far.
    """

    page: Page
    root: Path
    page_errors: list[str]

    def write(self, name: str, *cells: str) -> str:
        """Write a notebook of these code cells into the folder that is served; its name."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.root / name)
        return name

    @contextlib.contextmanager
    def notebook(self, path: str) -> Iterator[JupyterLab]:
        """Open a notebook with a fresh kernel; close it and end the kernel afterwards, without saving."""
        self.page_errors.clear()
        self.page.evaluate(OPEN, path)
        try:
            yield self
        finally:
            self.page.evaluate(CLOSE)

    def run_all(self, timeout_s: float = 200) -> list[dict[str, Any]]:
        """Run every cell as the menu does.

        Returns:
            For each code cell its source, count, tags and outputs.

        Raises:
            AssertionError: a cell raised that is not tagged to, or a cell did not run.
        """
        cells = self.page.evaluate(RUN_ALL, timeout_s * 1000)
        for cell in cells:
            assert cell["count"], f"this cell did not run:\n{cell['source']}"
            errors = [output for output in cell["outputs"] if output["output_type"] == "error"]
            if "raises-exception" not in cell["tags"]:
                assert not errors, f"{errors[0]['ename']}: {errors[0]['evalue']} in\n{cell['source']}"
        return cells

    def execute(self, code: str) -> str:
        """Run code in the open notebook's kernel, in no cell; what it printed."""
        return self.page.evaluate(EXECUTE, code)
