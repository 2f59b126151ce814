"""Grading a lab beside nbgrader's own `autograde`: `python benchmarks/grading.py [submissions]`.

Both grade the same files, right submissions of a small lab without ranks. Printed is the CPU time of all processes for
one submission more (the wall time of a shared machine says little; the start of each command is taken out by grading
one submission first); the wall time of `-j 1` against `-j 2`; and the cost of a submission with ranks that deadlock,
or with an answer that never returns. Ours must take less CPU than nbgrader's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import psutil

from course_tools.author.lab_source import grade_id_of, read_lab, student_version
from course_tools.grading.sandbox.processes import best_isolation
from course_tools.labs import Lab

LEAST_GAIN_OF_TWO = 1.6
LIMIT_S, CELL_S = 20.0, 4.0
LOOK_S = 0.02
SOURCE = """\
# %% [markdown]
# # Lab 90 · Windows

# %%
import torch

from course_kit import ranks
from course_kit.checks import check

# %% [markdown]
# ## 1 · Windows (60 points)


# %% answer="q1"
def moving_average(numbers, width):
    ### BEGIN SOLUTION
    return numbers.unfold(0, width, 1).mean(-1)
    ### END SOLUTION


# %% check="q1-values" points=40
check.close(check.call(moving_average, torch.arange(3.0), 2), torch.tensor([0.5, 1.5]), "windows of two")

# %% check="q1-hidden" points=20
### BEGIN HIDDEN TESTS
check.close(check.call(moving_average, torch.ones(9), 3), torch.ones(7), "windows of three")
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · Halves (40 points)


# %% answer="q2"
def half(number):
    ### BEGIN SOLUTION
    return number / 2
    ### END SOLUTION


# %% check="q2-values" points=20
check.equal(check.call(half, 3.0), 1.5, "half of three")

# %% check="q2-hidden" points=20
### BEGIN HIDDEN TESTS
check.equal(check.call(half, -1.0), -0.5, "half of minus one")
### END HIDDEN TESTS
"""
ANSWERS = {
    "q1": "def moving_average(numbers, width):\n    return numbers.unfold(0, width, 1).mean(-1)\n",
    "q2": "def half(number):\n    return number / 2\n",
}
DEADLOCK = """\
def half(number):
    def wait():
        import torch.distributed as dist
        if dist.get_rank() == 0:
            dist.barrier()

    ranks.run(wait, world_size=2, timeout_s=1000)
    return number / 2
"""
HANG = "def half(number):\n    while True:\n        pass\n"
NBGRADER = """\
c = get_config()
c.CourseDirectory.course_id = "benchmark"
c.Execute.timeout = 60
"""


def main(count: int = 20) -> int:
    """Print seconds and ratios; return 1 where ours takes more CPU than nbgrader."""
    with tempfile.TemporaryDirectory() as name:
        lab = make_course(Path(name), count)
        root = lab.root
        print(f"{count} right submissions, {os.cpu_count()} cores, isolation: {best_isolation()}")
        base, _ = measured(ours(root, "first", 1), root)
        cpu, one = measured(ours(root, "all", 1), root)
        per_ours = (cpu - base) / (count - 1)
        print(f"{'course grade -j 1':26} {per_ours:6.2f} s of CPU a submission, {one / count:6.2f} s of wall")
        _, two = measured(ours(root, "all", 2), root)
        print(f"{'course grade -j 2':26} {'':28} {two / count:6.2f} s of wall: {one / two:.2f} x as fast as -j 1")
        base, _ = measured(nbgrader(root, "student01"), root)
        cpu, wall = measured(nbgrader(root, "*"), root)
        per_theirs = (cpu - base) / (count - 1)
        print(f"{'nbgrader autograde':26} {per_theirs:6.2f} s of CPU a submission, {wall / count:6.2f} s of wall")
        limits = ["--wall", str(LIMIT_S), "--cell-timeout", str(CELL_S)]
        _, free = measured([*ours(root, "first", 1), *limits], root)
        costs = {kind: measured([*ours(root, kind, 1), *limits], root)[1] - free for kind in ("deadlock", "hang")}
    ratio = per_ours / per_theirs
    print(f"ours / nbgrader, CPU: {ratio:.2f}, below 1: {'yes' if ratio < 1 else 'no'}")
    for kind, cost_s in costs.items():
        print(f"a {kind}, {' '.join(limits)}: {cost_s:.1f} s more than a right submission")
    print(f"two at a time: {one / two:.2f} x, at least {LEAST_GAIN_OF_TWO}: {one / two >= LEAST_GAIN_OF_TWO}")
    return int(ratio >= 1)


def make_course(root: Path, count: int) -> Lab:
    """A course with one lab, laid out for both graders, and the submissions of `count` students."""
    lab = Lab(root, "lab90_windows")
    lab.source.parent.mkdir(parents=True)
    lab.source.write_text(SOURCE, "utf-8")
    (root / "lessons").mkdir()
    (root / "start.py").touch()
    (root / "pyproject.toml").write_text('[project.urls]\nRepository = "https://github.com/_OWNER_/x"\n', "utf-8")
    (root / "nbgrader_config.py").write_text(NBGRADER, "utf-8")
    key = read_lab(lab)
    write(root / "source" / lab.name / f"{lab.name}.ipynb", key)
    right = student_version(key)
    for cell in right.cells:
        cell.source = ANSWERS.get(grade_id_of(cell), cell.source)
    for number in range(1, count + 1):
        write(root / "submitted" / f"student{number:02}" / lab.name / f"{lab.name}.ipynb", right)
        write(root / "all" / f"student{number:02}" / f"{lab.name}.ipynb", right)
    for folder, answer in {"first": ANSWERS["q2"], "deadlock": DEADLOCK, "hang": HANG}.items():
        for cell in right.cells:
            cell.source = answer if grade_id_of(cell) == "q2" else cell.source
        write(root / folder / "student01" / f"{lab.name}.ipynb", right)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ |= {"PATH": path, "OMP_NUM_THREADS": "1"}  # nbgrader calls alembic when it makes its database
    subprocess.run([*NBGRADER_COMMAND, "generate_assignment", lab.name], cwd=root, check=True, capture_output=True)
    return lab


NBGRADER_COMMAND = [sys.executable, "-m", "nbgrader"]


def ours(root: Path, folder: str, jobs: int) -> list[str]:
    """The command that grades a folder of submissions anew."""
    shutil.rmtree(root / "grades", ignore_errors=True)
    return [sys.executable, "-m", "course_tools", "grade", "lab90", folder, "-j", str(jobs)]


def nbgrader(root: Path, student: str) -> list[str]:
    """The command with which nbgrader grades one student, or all of them, anew."""
    shutil.rmtree(root / "autograded", ignore_errors=True)
    return [*NBGRADER_COMMAND, "autograde", "lab90_windows", "--force", f"--student={student}"]


def measured(command: list[str], folder: Path) -> tuple[float, float]:
    """CPU seconds of a command and all its descendants, and its wall seconds.

    The time of a process is looked up while it lives: the system does not hand on that of one that was killed together
    with its namespace. The last moments of a process are missing, for both graders alike.
    """
    used: dict[tuple[int, float], float] = {}
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = psutil.Popen(command, cwd=folder, stdout=output, stderr=output)
        while process.poll() is None:
            for member in family(process):
                with contextlib.suppress(psutil.Error):
                    times = member.cpu_times()
                    used[member.pid, member.create_time()] = times.user + times.system
            time.sleep(LOOK_S)
        if process.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(command)} failed:\n{output.read()}")
    return sum(used.values()), time.perf_counter() - start


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process and all its descendants."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def write(path: Path, notebook: nbformat.NotebookNode) -> None:
    """Write a notebook to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
