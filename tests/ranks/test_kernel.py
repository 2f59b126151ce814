"""In a real IPython kernel: cell labels, interrupt, and no process that survives its kernel."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from tests.ranks.conftest import alive


class Notebook:
    """A kernel to run cells in."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def run(self, source: str, interrupt_after_s: float | None = None) -> tuple[str, str]:
        """Run one cell: (what it printed, its error as shown)."""
        printed, shown = [], []
        interrupted = False

        def on_output(message: dict[str, Any]) -> None:
            nonlocal interrupted
            content = message["content"]
            if message["msg_type"] == "stream":
                printed.append(content["text"])
                if interrupt_after_s is not None and "started" in content["text"] and not interrupted:
                    interrupted = True
                    time.sleep(interrupt_after_s)
                    self.manager.interrupt_kernel()
            elif message["msg_type"] == "error":
                shown.extend(content["traceback"] or [f"{content['ename']}: {content['evalue']}"])

        self.client.execute_interactive(source, timeout=60, output_hook=on_output, allow_stdin=False)
        return "".join(printed), "\n".join(shown)


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    """One kernel for all tests of this file (the last test kills it)."""
    notebook = Notebook()
    notebook.run("import os, time, torch, torch.distributed as dist\nfrom course_kit import ranks")
    yield notebook
    notebook.client.stop_channels()
    notebook.manager.shutdown_kernel(now=True)


def test_a_function_of_a_cell_runs_and_prints(notebook: Notebook) -> None:
    printed, shown = notebook.run("""
def hello():
    x = torch.ones(1)
    dist.all_reduce(x)
    print("sum", x.item())
ranks.run(hello, world_size=2);
""")
    assert (printed, shown) == ("[rank 0] sum 2.0\n[rank 1] sum 2.0\n", "")


def test_a_failure_shows_the_cells_lines_and_nothing_else(notebook: Notebook) -> None:
    _, shown = notebook.run(
        "def late():\n    if dist.get_rank() == 0:\n        dist.barrier()\nranks.run(late, world_size=2)"
    )
    assert shown.splitlines() == [
        "RankFailure: rank 0 waits in barrier (cell [3] line 3); rank 1 returned without calling it",
        "",
        "rank 0 waits in barrier (cell [3] line 3):",
        "      cell [3] line 3, in late",
        "        dist.barrier()",
        "",
        "rank 1 returned",
    ]


def test_an_interrupt_returns_at_once_and_the_next_call_works(notebook: Notebook) -> None:
    start = time.monotonic()
    _, shown = notebook.run(
        "def stay():\n    print('started')\n    dist.barrier() if dist.get_rank() else time.sleep(60)\n"
        "ranks.run(stay, world_size=2)",
        interrupt_after_s=0.2,
    )
    assert "KeyboardInterrupt" in shown
    assert time.monotonic() - start < 30  # rank 0 sleeps for 60; a busy machine may start slowly
    printed, _ = notebook.run("print(ranks.run(int, world_size=2))")
    assert printed == "[0, 0]\n"


def test_no_process_survives_a_kernel_that_is_killed(notebook: Notebook, tmp_path: Path) -> None:
    source = f"""
def stay():
    open({str(tmp_path)!r} + f"/{{dist.get_rank()}}", "w").write(f"{{os.getpid()}} {{os.getppid()}}")
    while dist.get_rank():
        pass
    import ctypes
    ctypes.PyDLL(None).sleep(60)
ranks.run(stay, world_size=3)
"""
    kernel_pid = notebook.manager.provisioner.pid  # type: ignore[union-attr]
    notebook.client.execute(source)
    files = [tmp_path / str(rank) for rank in range(3)]
    end = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < end
        time.sleep(0.02)
    pids = {int(pid) for file in files for pid in file.read_text().split()}
    assert len(pids) == 4
    os.kill(kernel_pid, signal.SIGKILL)  # not its process group: only what we wrote can end the others
    assert not [pid for pid in pids if alive(pid)]
