"""`python -m tests [stages]`: every check of the course, stage by stage; `python3 start.py test` ends up here."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests import clock, machine, quick
from tests.stages import NAMES, STAGES, Stage

ROOT = Path(__file__).resolve().parents[1]
RESULT = re.compile(
    r"^.*(?:\d+ (?:passed|failed|errors?|skipped|deselected|files? already).*|All checks passed.*)$", re.MULTILINE
)
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""A variable that the stages must not have: hundreds of processes would compile all packages anew, seconds in each."""
PASSED, FAILED, STOPPED, DID_NOT_RUN = "passed", "FAILED", "STOPPED", "did not run"


@dataclass(frozen=True)
class Row:
    """The outcome of one stage; `said` is the stage's last line, or the reason for which it did not run."""

    name: str
    verdict: str
    seconds: float
    said: str


def main() -> int:
    """Run the stages that were asked for, also after failures of earlier ones, and end with two tables."""
    lines = [f"{stage.name}: {stage.about}" for stage in STAGES]
    parser = argparse.ArgumentParser(prog="python3 start.py test", description="Stages: " + "; ".join(lines) + ".")
    parser.add_argument("stages", nargs="*", metavar="stage", help="default: all of them; quick: see CONTRIBUTING.md")
    wanted = parser.parse_args().stages
    for name in wanted:
        if name not in ("quick", *NAMES):
            parser.error(f"there is no stage {name!r}; the stages are {', '.join(NAMES)}, and quick")
    stages = quick.stages(ROOT) if "quick" in wanted else [s for s in STAGES if not wanted or s.name in wanted]
    rows = []
    with tempfile.TemporaryDirectory() as reports:
        for stage in stages:
            rows.append(become(stage, Path(reports)))
            if rows[-1].verdict == STOPPED:
                break
        spent = clock.by_lesson(Path(reports))
    return report(rows, spent)


def become(stage: Stage, reports: Path) -> Row:
    """Run a stage; the seconds of its tests are left in the folder `reports`."""
    print(f"\n=== {stage.name}: {stage.about}", flush=True)
    begin = time.perf_counter()
    try:
        if problem := stage.needs() if stage.needs else "":
            print(f"This stage does not run: {problem}", flush=True)
            return Row(stage.name, DID_NOT_RUN, time.perf_counter() - begin, problem)
        files = [f"--junitxml={reports / stage.name}-{number}.xml" for number in range(len(stage.commands))]
        results = [run([*command, file] if stage.timed else command) for command, file in zip(stage.commands, files)]
    except KeyboardInterrupt:
        return Row(stage.name, STOPPED, time.perf_counter() - begin, "interrupted")
    verdict = FAILED if any(code for code, _ in results) else PASSED
    return Row(stage.name, verdict, time.perf_counter() - begin, ", ".join(said for _, said in results if said))


def run(command: list[str]) -> tuple[int, str]:
    """Run a module, pass its output on as it comes, and return its exit code and the line with its result."""
    tail = b""
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != NO_BYTECODE},
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


def report(rows: list[Row], spent: dict[str, dict[str, float]]) -> int:
    """Print the seconds by lesson and lab and the outcome of each stage; return the exit code."""
    if spent:
        print("\n=== where time went: seconds of the tests of each lesson and lab, of which two or three run at once")
        print("\n".join(clock.table(spent)))
    print("\n=== summary")
    for row in rows:
        print(f"{row.name:10} {row.verdict:11} {row.seconds:7.1f} s   {row.said}")
    missing = [row for row in rows if row.verdict == DID_NOT_RUN]
    good = all(row.verdict in (PASSED, DID_NOT_RUN) for row in rows) and len(missing) < max(1, len(rows))
    if missing and machine.in_ci():
        good = False
        print("In CI, a stage that did not run is a failure.")
    total = sum(row.seconds for row in rows)
    ran = "All passed" if not missing else "All that ran passed"
    print(f"{ran if good else 'NOT all passed'} in {total:.0f} s.", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
