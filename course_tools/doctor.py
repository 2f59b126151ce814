"""`course doctor`: is this machine ready? Green and red lines, and a remedy for each red one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from course_tools.lessons import course_root

ROOM_GB = 1.0  # room for all that lessons may write: caches, logs, offloaded tensors


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        good: True is green, False is red and makes the command fail, None is only worth knowing.
        text: the finding in words.
        advice: the remedy; every finding that is not green has one.
    """

    good: bool | None
    text: str
    advice: str = ""


def examine(console: Console) -> bool:
    """Print every finding and return whether none is red."""
    good = True
    for find in (python, pins, torch_and_devices, ranks_start, disk, grading):
        for finding in find():
            good = good and finding.good is not False
            mark, style = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("·", "yellow")}[finding.good]
            console.print(f"{mark} {finding.text}", style=style, markup=False)
            if finding.advice:
                console.print(f"    {finding.advice}", markup=False)
    console.print("Ready." if good else "Not ready: see the lines with ✗.", style="bold")
    return good


def python() -> Iterator[Finding]:
    """The version, and whether an environment of its own is active."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding(True, f"Python {version} in {sys.prefix}")
    if sys.prefix == sys.base_prefix and not os.environ.get("CONDA_PREFIX"):
        yield Finding(None, "no virtual environment is active", "python3 start.py makes one, in .venv.")


def pins(root: Callable[[], Path] = course_root) -> Iterator[Finding]:
    """Installed versions against constraints.txt: other ones may well work, but stored outputs were made with these."""
    try:
        pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (root() / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    except (ValueError, OSError):
        advice = "Call it in the course's folder, the one that start.py is in; lessons work without."
        yield Finding(None, "no constraints.txt here: versions were not compared", advice)
        return
    installed = {re.sub(r"[-_.]+", "-", d.name).lower(): d.version for d in importlib.metadata.distributions()}
    other = {n: v for n, v in pinned.items() if (installed.get(n) or v).split("+")[0] != v}
    if not other:
        yield Finding(True, f"{len(pinned.keys() & installed.keys())} installed packages have their pinned versions")
        return
    names = ", ".join(f"{name} {installed[name]} (pinned: {version})" for name, version in sorted(other.items())[:5])
    more = f" and {len(other) - 5} more" if len(other) > 5 else ""
    advice = "They may work; for the pinned ones: pip install -c constraints.txt -e '.[jupyter]'"
    yield Finding(None, f"other versions than the pinned ones: {names}{more}", advice)


def torch_and_devices() -> Iterator[Finding]:
    """PyTorch, the devices that PyTorch computes on, and whether its processes can talk to each other."""
    try:
        import torch
    except Exception as problem:  # a broken installation fails in many ways
        yield Finding(False, f"PyTorch cannot be imported: {problem}", "python3 start.py installs it.")
        return
    yield Finding(True, f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads on {os.cpu_count()} cores")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            yield Finding(True, f"GPU {index}: {device.name}, {device.total_memory / 2**30:.1f} GiB")
    elif shutil.which("nvidia-smi"):
        advice = "Install the CUDA build: remove .venv, then python3 start.py (or see pytorch.org)."
        yield Finding(None, "there is an NVIDIA driver, but this PyTorch cannot use it", advice)
    else:
        yield Finding(True, "no GPU, and none is needed: every lesson runs on the CPU")


def _two_ranks_add() -> float:
    import torch
    import torch.distributed as dist

    one = torch.ones(1)
    dist.all_reduce(one)
    return one.item()


def ranks_start() -> Iterator[Finding]:
    """Four processes that add four ones, twice: the first call starts them."""
    from course_kit import ranks

    try:
        start = time.perf_counter()
        answers = ranks.run(_two_ranks_add, world_size=4, timeout_s=60)
        first, start = time.perf_counter() - start, time.perf_counter()
        answers += ranks.run(_two_ranks_add, world_size=4, timeout_s=60)
        later = time.perf_counter() - start
    except Exception as problem:
        advice = (
            "Does a firewall forbid connections to 127.0.0.1, or a sandbox new processes? Allow both for Python, "
            "or use another machine (Colab does)."
        )
        yield Finding(False, f"four ranks do not start: {problem}", advice)
        return
    if answers == [4.0] * 8:
        yield Finding(True, f"four ranks add up: first call {first:.1f} s, second call {later * 1000:.0f} ms")
    else:
        advice = "Install PyTorch anew: remove .venv, then python3 start.py. If that does not help, please report it."
        yield Finding(False, f"four ranks that add four ones got {answers}", advice)


def disk(folders: tuple[Path, ...] | None = None) -> Iterator[Finding]:
    """The folders that lessons write to: whether writing works, and whether there is room."""
    for folder in folders or tuple({Path.cwd(), Path(tempfile.gettempdir())}):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"x")
        except OSError as problem:
            advice = "Work in a folder of your own: course open --to DIR. For temporary files, TMPDIR names one."
            yield Finding(False, f"cannot write in {folder}: {problem.strerror}", advice)
            continue
        free = shutil.disk_usage(folder).free / 1e9
        if free < ROOM_GB:
            yield Finding(False, f"{free:.1f} GB free in {folder}", f"Make {ROOM_GB:.0f} GB of room.")
        else:
            yield Finding(True, f"{free:.1f} GB free in {folder}")


def grading() -> Iterator[Finding]:
    """Whether strangers' code would be kept apart from this machine; nothing in a course without the grader."""
    if not importlib.util.find_spec("nbgrader") or not importlib.util.find_spec("course_tools.grading"):
        return
    from course_tools.grading.sandbox import processes as sandbox

    if (way := sandbox.best_isolation()) != sandbox.NONE:
        yield Finding(True, f"submissions are graded in a sandbox ({way})")
    else:
        advice = "Grade on Linux with bubblewrap (Debian, Ubuntu: sudo apt-get install bubblewrap); see INSTRUCTORS.md."
        yield Finding(None, "submissions would be graded without a sandbox here, and reports say NOT ISOLATED", advice)
