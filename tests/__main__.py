"""`python -m tests [all | changed] [rooms]`: the check of the course; `python3 start.py test` ends up here."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests import clock, machine
from tests.plan import BESIDE, ROOT, Need, Plan, asked_for

RESULT = re.compile(
    r"^.*(?:\d+ (?:passed|failed|errors?|skipped|deselected|files? already).*|All checks passed.*)$", re.MULTILINE
)
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""A variable that the tests must not have: hundreds of processes would compile all packages anew, seconds in each."""
REPORTS = ROOT / "build" / "check"
"""What pytest reports of the last check, in JUnit's format."""
COUNTS = "COURSE_TEST_COUNTS"
"""A variable with the file into which the tests write how many wait, by marker."""
PASSED, FAILED, STOPPED, MISSING, NOT_HERE = "passed", "FAILED", "STOPPED", "did not run", "not for this system"
NO_TEST = 5  # pytest's exit code


@dataclass(frozen=True)
class Row:
    """One line of the summary; `said` is the last line of a run, or the reason for which it did not run."""

    name: str
    verdict: str
    seconds: float
    said: str


def main() -> int:
    """Run what was asked for, and end with where time went, what was left, and the verdict."""
    parser = argparse.ArgumentParser(prog="python3 start.py test", description=__doc__)
    parser.add_argument("words", nargs="*", help="all, changed, gpu, lint, types, folders or files of tests")
    try:
        plan = asked_for(parser.parse_args().words)
    except ValueError as problem:
        parser.error(str(problem))
    begin = time.perf_counter()
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    rows = run(plan, REPORTS)
    counts = REPORTS / "counts.json"
    waiting = json.loads(counts.read_text()) if counts.exists() else {}
    print_time(REPORTS, by_lesson=plan.everything)
    return report(rows, time.perf_counter() - begin, waiting if not plan.everything else {})


def run(plan: Plan, folder: Path) -> list[Row]:
    """Install what is missing, then run the tests, with lint and types beside them from the start."""
    rows = list[Row]()
    with ThreadPoolExecutor() as threads:
        beside = {name: threads.submit(_quiet, name) for name in plan.beside}
        try:
            missing = {need: _row_of(need) for need in plan.needs}
            rows += [row for row in missing.values() if row]
            for name, command in plan.runs([need for need, row in missing.items() if row]).items():
                rows.append(_pytest(name, command, folder))
        except KeyboardInterrupt:
            rows.append(Row("tests", STOPPED, 0.0, "interrupted"))
        rows[:0] = [_result(future) for future in beside.values()]
    return rows


def _row_of(need: Need) -> Row | None:
    """The line about a need that is not met; None if it is."""
    begin = time.perf_counter()
    if need.systems and sys.platform not in need.systems:
        return Row(need.name, NOT_HERE, 0.0, f"only {' and '.join(need.systems)} can have it")
    problem = need.problem()
    return Row(need.name, MISSING, time.perf_counter() - begin, problem) if problem else None


def _quiet(name: str) -> tuple[Row, str]:
    """Run the commands of a name of `BESIDE`; what they print is kept until the tests are over."""
    begin, said, good = time.perf_counter(), "", True
    for command in BESIDE[name]:
        ran = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
        said, good = said + ran.stdout + ran.stderr, good and ran.returncode == 0
    verdict, last = PASSED if good else FAILED, (RESULT.findall(said) or [""])[-1].strip()
    return Row(name, verdict, time.perf_counter() - begin, last), said


def _result(future: Future[tuple[Row, str]]) -> Row:
    row, said = future.result()
    if row.verdict == FAILED:
        print(f"\n=== {row.name}\n{said}", flush=True)
    return row


def _pytest(name: str, command: Sequence[str], folder: Path) -> Row:
    """One run of pytest, its output passed on as it comes; seconds and counts of its tests are left in the folder."""
    print(f"\n=== {name}", flush=True)
    begin, tail = time.perf_counter(), b""
    environment = {key: value for key, value in os.environ.items() if key != NO_BYTECODE}
    with subprocess.Popen(
        [sys.executable, "-m", *command, f"--junitxml={folder / name}.xml"],
        cwd=ROOT,
        env=environment | {COUNTS: str(folder / "counts.json")},
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
    verdict = PASSED if process.returncode in (0, NO_TEST) else FAILED
    return Row(name, verdict, time.perf_counter() - begin, found[-1].strip(" =") if found else "")


def print_time(folder: Path, *, by_lesson: bool) -> None:
    """Print the seconds of the tests by room, and by lesson and lab where all of them ran."""
    cases = clock.cases(folder)
    if cases:
        print("\n=== where time went: seconds of tests, of which several run at once")
        print("\n".join(clock.by_room(cases)))
    if cases and by_lesson:
        print("\n".join(["", *clock.by_lesson(cases)]))


def report(rows: Sequence[Row], seconds: float, waiting: Mapping[str, int]) -> int:
    """Print the summary and the tests that were left; return the exit code."""
    print("\n=== summary")
    for row in rows:
        print(f"{row.name:8} {row.verdict:19} {row.seconds:7.1f} s   {row.said}")
    missing = [row for row in rows if row.verdict == MISSING]
    ran = [row for row in rows if row.verdict not in (MISSING, NOT_HERE)]
    good = bool(ran) and all(row.verdict == PASSED for row in ran)
    if missing and machine.in_ci():
        good = False
        print("In CI, what should have run and did not is a failure.")
    if waiting.get("nightly") or waiting.get("timed"):
        left = f"{waiting['nightly']} tests that another one stands for, {waiting['timed']} that read a clock"
        left += f", {waiting['simulated']} on simulated GPUs" if waiting.get("simulated") else ""
        print(f"Left for `python3 start.py test all`: {left}; {waiting['default']} ran or were skipped here.")
    said = "NOT all passed" if not good else "All that ran passed" if missing else "All passed"
    print(f"{said} in {seconds:.0f} s.", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
