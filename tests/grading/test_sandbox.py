"""What a sandboxed kernel can see and do, in each of the ways in which it may be isolated."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from course_tools import folders
from course_tools.grading.sandbox import mounts
from course_tools.grading.sandbox import processes as sandbox
from course_tools.grading.sandbox.kernel import Budget, Kernel, KernelEnded
from course_tools.grading.sandbox.limits import MIB, Limits
from tests.grading.conftest import WAYS, end

READS = ("course_*/**/*",)
pytestmark = pytest.mark.notebook


@pytest.fixture
def kernel(way: str) -> Iterator[Kernel]:
    limits = Limits(cell_s=60, memory_bytes=600 * MIB, processes=20, file_bytes=10 * MIB)
    with Kernel(limits, way, Budget(300)) as kernel:
        yield kernel


def test_a_cell_runs_and_its_error_comes_back(kernel: Kernel) -> None:
    assert kernel.run("x = 1").error == ""
    reply = kernel.run("raise ValueError(x + 1)")
    assert (reply.error, reply.text, reply.late) == ("ValueError", "2", False)


def test_the_limits_of_the_system(kernel: Kernel, way: str) -> None:
    assert kernel.run("bytearray(10**10)").error == "MemoryError"
    reply = kernel.run("with open('big', 'wb') as file:\n    for _ in range(20): file.write(bytes(2**20))")
    assert (reply.error, "too large" in reply.text.lower()) == ("OSError", True)


@pytest.mark.parametrize("way", WAYS[:1], indirect=True)
def test_the_file_tree(kernel: Kernel, way: str) -> None:
    root = Path(__file__).parents[2]
    below_tmp = root.parts[2:3] if root.parts[1] == "tmp" else ()  # the way to the course itself, which is shown
    expected = sorted({"home", "lab", *below_tmp})
    seen = {folder.name for folder in folders()}
    source = f"""
import os
import shutil
assert set(os.listdir({str(root)!r})) - {{'.venv'}} == {seen!r}, os.listdir({str(root)!r})
assert (sorted(os.listdir('/tmp')), os.getcwd()) == ({expected!r}, '/tmp/lab'), os.listdir('/tmp')
assert os.listdir('/run') == ['kernel'], os.listdir('/run')
assert not os.path.exists('/etc/passwd') and not os.path.exists('/sys'), os.listdir('/')
for place in ('/x', '/etc/x', '/usr/x', {str(root / "course_lib" / "x")!r}):
    try: open(place, 'w')
    except OSError: continue
    raise AssertionError(place)
"""
    reply = kernel.run(source)
    assert reply.error == "", reply


def test_processes_are_counted(kernel: Kernel) -> None:
    source = (
        "import os, time\nfor _ in range(30):\n    if os.fork() == 0:\n        time.sleep(50)\n        os._exit(0)\n"
    )
    with pytest.raises(KernelEnded, match="processes"):
        kernel.run(f"{source}time.sleep(20)")


def test_nothing_is_left_behind(way: str) -> None:
    with Kernel(Limits(), way, Budget(60)) as kernel:
        folder = kernel._folder
        assert folder.is_dir()
        kernel.run("import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
        alive = kernel._sandbox.processes()
        assert "sleep" in {process.name() for process in alive}
        kernel.close()
        assert all_end([process.pid for process in alive])
        assert not folder.exists()


def test_the_grader_takes_its_kernels_along(way: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    script = tmp_path / "grader.py"
    script.write_text(
        "import os, time\nfrom course_tools.grading.sandbox.kernel import Budget, Kernel\n"
        "from course_tools.grading.sandbox.limits import Limits\n"
        f"kernel = Kernel(Limits(), {way!r}, Budget(60))\nkernel.run('1')\nprint(kernel._folder)\n"
        "print(*[process.pid for process in kernel._sandbox.processes()], flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    root = str(Path(__file__).parents[2])
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    folder, *pids = ran.stdout.split()
    left = [psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))]
    request.addfinalizer(lambda: end(left, [folder]))  # who is killed removes nothing
    assert pids and all_end([int(pid) for pid in pids])


def test_what_a_kernel_sees_is_never_the_home_folder_or_the_course() -> None:
    seen = mounts.read_only()
    packages = folders()
    root = packages[0].parent
    assert set(packages) <= set(seen)
    for place in (Path.home(), root, Path("/"), Path("/tmp"), Path("/etc")):
        assert place not in seen


def test_limits_must_be_positive() -> None:
    with pytest.raises(ValueError, match="cell_s is 0"):
        Limits(cell_s=0)


def all_end(pids: list[int], patience_s: float = 20) -> bool:
    """Whether they all end by themselves; what was left behind would stay for minutes."""
    end = time.monotonic() + patience_s
    while any(map(runs, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(runs, pids))


def runs(pid: int) -> bool:
    """Whether it is alive; one that nobody has reaped yet is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.sandbox
def test_a_course_below_tmp_is_isolated_as_well(tmp_path: Path) -> None:
    for package in folders():
        shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    script = "from course_tools import folders\nfrom course_tools.grading.sandbox import processes\n"
    script += "print(*{folder.parent for folder in folders()}, processes.best_isolation())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert ran.stdout.split() == [str(tmp_path), sandbox.BUBBLEWRAP], ran.stderr
