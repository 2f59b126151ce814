"""Run the benchmarks one after the other and record their output, with the machine that they ran on.

    python benchmarks/record.py              all of them, to benchmarks/results/DATE-cpu.md
    python benchmarks/record.py memory ranks  two of them, in place of today's file

All of them compute on the CPU, and a GPU is hidden from them: the ranks would prepare it for nothing.
Let nothing else run meanwhile. Machines differ and are noisy: quote the ratios, not the seconds.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent


def processor() -> str:
    """The processor's name where the system tells it."""
    try:
        names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of a failure's output; a process that was killed has none."""
    return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]


def main() -> int:
    """Run, print and record; the exit code is 1 if a benchmark failed."""
    known = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("record", "turns", "promise"))
    wanted = sys.argv[1:] or known
    if unknown := sorted(set(wanted) - set(known)):
        sys.exit(f"There is no benchmark {', '.join(unknown)}; there are {', '.join(known)}.")
    today = datetime.date.today().isoformat()
    machine = f"{os.cpu_count()} CPU cores ({processor()})"
    lines = [f"# {today}, {machine}", "", f"Python {platform.python_version()}, torch {torch.__version__}.", ""]
    failed, environment = False, os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    for name in wanted:
        print(f"--- {name}", flush=True)
        command = [sys.executable, HERE / f"{name}.py"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        failed |= done.returncode != 0
        print(done.stdout if done.returncode == 0 else done.stdout + done.stderr, flush=True)
        result = done.stdout.strip() + ("" if done.returncode == 0 else f"\nfailed: {_last_line(done)}")
        lines += [f"## {name}", "", "```", result, "```", ""]
    file = HERE / "results" / f"{today}-cpu.md"
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines))
    print(f"Recorded in {file.relative_to(HERE.parent)}.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
