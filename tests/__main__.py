"""`python -m tests [stages]`: every check of the course, stage by stage; `python3 start.py test` ends up here."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTEST = ["pytest", "-q", "--durations=5"]
TWO = ["-n", "2"]
BY_FILE = [*TWO, "--dist", "loadfile"]
KERNELS = ["tests/labs/test_labs.py", "tests/grading"]  # what starts many processes and measures no seconds
STAGES: dict[str, tuple[str, list[list[str]]]] = {  # what fails quickly comes first
    "lint": ("style and likely mistakes", [["ruff", "check", "."], ["ruff", "format", "--check", "."]]),
    "types": ("static types", [["pyright", "--pythonpath", sys.executable]]),
    "unit": (
        "the library, the tools, the stored notebooks",
        [[*PYTEST, *BY_FILE, "-m", "not browser", "--ignore=tests/ranks", *(f"--ignore={path}" for path in KERNELS)]],
    ),
    "labs": ("stubs, solutions and known-wrong answers of every lab; the grader", [[*PYTEST, *TWO, *KERNELS]]),
    "ranks": ("real processes", [[*PYTEST, "-m", "not browser", "tests/ranks"]]),
    "notebooks": ("every cell of every notebook again, outputs compared", [["tests.notebooks", "-q", *BY_FILE]]),
    "browser": ("JupyterLab and its widgets in Chromium", [[*PYTEST, *TWO, "-m", "browser", "tests/browser"]]),
}
RESULT = re.compile(
    r"^.*(?:\d+ (?:passed|failed|errors?|skipped|deselected|files? already).*|All checks passed.*)$", re.MULTILINE
)


def main() -> int:
    """Run the stages that were asked for, whatever becomes of those before, and end with a table."""
    lines = [f"{name}: {about}" for name, (about, _) in STAGES.items()]
    parser = argparse.ArgumentParser(prog="python3 start.py test", description="Stages: " + "; ".join(lines) + ".")
    parser.add_argument("stages", nargs="*", metavar="stage", help="default: all of them")
    wanted = parser.parse_args().stages
    for name in wanted:
        if name not in STAGES:
            parser.error(f"there is no stage {name!r}; the stages are {', '.join(STAGES)}")
    rows: list[tuple[str, str, float, str]] = []
    for name in [name for name in STAGES if not wanted or name in wanted]:
        about, commands = STAGES[name]
        print(f"\n=== {name}: {about}", flush=True)
        start = time.perf_counter()
        try:
            results = [run(command) for command in commands]
        except KeyboardInterrupt:
            rows.append((name, "STOPPED", time.perf_counter() - start, "interrupted"))
            break
        verdict = "FAILED" if any(code for code, _ in results) else "passed"
        rows.append(
            (name, verdict, time.perf_counter() - start, ", ".join(filter(None, (last for _, last in results))))
        )
    return report(rows)


def run(command: list[str]) -> tuple[int, str]:
    """Run a module, pass its output on as it comes, and return its exit code and the line with its result."""
    tail = b""
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        while chunk := os.read(process.stdout.fileno(), 65536):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            tail = (tail + chunk)[-20000:]
    found = RESULT.findall(tail.decode("utf-8", "replace"))
    return process.returncode, found[-1].strip(" =") if found else ""


def report(rows: list[tuple[str, str, float, str]]) -> int:
    """Print the table and return the exit code."""
    print("\n=== summary")
    for name, verdict, seconds, result in rows:
        print(f"{name:10} {verdict:7} {seconds:7.1f} s   {result}")
    good = all(verdict == "passed" for _, verdict, _, _ in rows)
    total = sum(seconds for _, _, seconds, _ in rows)
    print(f"{'All passed' if good else 'NOT all passed'} in {total:.0f} s.", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
