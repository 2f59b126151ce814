"""The plan of `python3 start.py test`: what runs by default, what waits for `test all`, what some tests need.

A test waits by its marker alone: `nightly`, since another test tells the same story; `timed`, since it reads a clock
or makes load, for which it runs alone and last; or `simulated`, since it makes GPUs that are none, in a run of its own
that `start.py test gpu` is, too. Everything else is the default.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import changed, machine

ROOT = Path(__file__).resolve().parents[1]
PYTEST = ["pytest", "-q", "--durations=5", "-p", "no:nbval"]  # tests/notebooks starts that plugin; it loads slowly
BESIDE = {
    "lint": [["ruff", "check", "."], ["ruff", "format", "--check", "."]],
    "types": [["pyright", "--pythonpath", sys.executable]],
}
"""What runs beside the tests: name → modules of Python with their arguments."""
WAITING = ("nightly", "timed", "simulated")
"""The markers of tests that wait for `test all`."""
MOST_WORKERS = 8


@dataclass(frozen=True)
class Need:
    """A thing beyond the extra `test` that some tests need.

    Attributes:
        name: its name in the summary.
        problem: looks at the machine, installs if that needs no password, returns why the tests cannot run, or nothing.
        room: the folder of these tests.
        marker: of the tests that need it; empty where they skip themselves.
        systems: values of `sys.platform` that can have it; none: all of them.
    """

    name: str
    problem: Callable[[], str]
    room: str
    marker: str = ""
    systems: tuple[str, ...] = ()


BROWSER = Need("browser", machine.browser, "tests/browser", "browser")
SANDBOX = Need("sandbox", machine.sandbox, "tests/grading", "sandbox", systems=("linux",))
FOREIGN = Need("foreign", machine.foreign, "tests/foreign")
GPU = Need("gpu", machine.simulated_gpu, "tests/simulated_gpu", "simulated", systems=("linux",))
WAITING_NEEDS = (FOREIGN, GPU)
"""The needs of tests that `test all` alone runs, and whoever asks for their room."""


@dataclass(frozen=True)
class Plan:
    """The things that were asked for.

    Attributes:
        everything: whether tests that wait run too.
        rooms: folders and files of tests; empty for no test at all.
        beside: names of `BESIDE`.
        changed: run only the tests that these files can touch; empty for all tests.
    """

    everything: bool = False
    rooms: tuple[str, ...] = ("tests",)
    beside: tuple[str, ...] = tuple(BESIDE)
    changed: tuple[str, ...] = ()

    @property
    def needs(self) -> list[Need]:
        """The needs of these tests."""
        if self.rooms == ("tests",):
            return [BROWSER, SANDBOX, *(WAITING_NEEDS if self.everything else ())]
        needs = [need for need in (BROWSER, SANDBOX, *WAITING_NEEDS) if need.room in " ".join(self.rooms)]
        return [need for need in needs if need not in WAITING_NEEDS or self.everything or not self.changed]

    def runs(self, missing: Sequence[Need]) -> dict[str, list[str]]:
        """Name → command of each run of pytest, in order; tests that need something missing are left out."""
        if not self.rooms:
            return {}
        has = "".join(f" and not {need.marker}" for need in missing if need.marker)
        asked = [*self.rooms, *(f"--changed={name}" for name in self.changed)]
        workers = ["-n", str(worker_count()), "--dist", "worksteal"]
        of_gpu = [room for room in self.rooms if room.startswith(GPU.room) and not self.changed]
        runs = dict[str, list[str]]()
        if len(of_gpu) < len(self.rooms):
            at_once = " and ".join(f"not {marker}" for marker in (WAITING[1:] if self.everything else WAITING))
            runs["tests"] = [*PYTEST, *workers, "-m", at_once + has, *asked]
            if self.everything:
                runs["timed"] = [*PYTEST, "-m", "timed" + has, *asked]
        if GPU in self.needs and GPU not in missing:
            simulated = "simulated" if self.everything and of_gpu else "simulated and not weekly"
            runs["gpu"] = [*PYTEST, *workers, "-m", simulated, *asked]
        return runs


def asked_for(words: Sequence[str]) -> Plan:
    """The plan that the words behind `start.py test` name.

    Raises:
        ValueError: a word names nothing; the message lists the words that there are.
    """
    rooms = [GPU.room if word == GPU.name else place(word) for word in words if word not in ("all", "changed", *BESIDE)]
    beside = tuple(word for word in words if word in BESIDE)
    if "changed" in words and not rooms:
        return of_change(changed.changed_files(ROOT), everything="all" in words)
    if not rooms and not beside:
        return Plan("all" in words)
    return Plan("all" in words, tuple(rooms), beside)


def of_change(files: set[Path] | None, *, everything: bool) -> Plan:
    """The plan for changed files, absolute paths: the files of tests that they touch; the whole where none is known."""
    if files is None or machine.in_ci():
        print("What changed is unknown, or this is CI: nothing is left out.")
        return Plan(everything)
    rooms = tuple(path.relative_to(ROOT).as_posix() for path in changed.touched_files(files, ROOT))
    names = tuple(sorted(path.relative_to(ROOT).as_posix() for path in files))
    print(f"{len(names)} changed: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}")
    print(f"They can touch {len(rooms)} of {len(changed.test_files(ROOT))} files of tests.", flush=True)
    return Plan(everything, rooms, changed=names)


def place(word: str) -> str:
    """The path of a folder or file of tests: `labs`, `tests/labs`.

    Raises:
        ValueError: there is none.
    """
    for path in (ROOT / "tests" / word, ROOT / word):
        if path.exists() and path.is_relative_to(ROOT / "tests"):
            return path.relative_to(ROOT).as_posix()
    folders = sorted(path.name for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py")))
    there_is = f"all, changed, gpu, {', '.join(BESIDE)}, or a folder or file of tests: {', '.join(folders)}"
    raise ValueError(f"there is no {word!r}; there is {there_is}")


def worker_count() -> int:
    """One worker more than processors that this process may use, at most eight: a fifth of a worker's time is waiting.

    It waits for kernels to start, for browsers, for limits to be over.
    """
    here = hasattr(os, "sched_getaffinity")  # what `os.process_cpu_count` of Python 3.13 asks, too
    return min((len(os.sched_getaffinity(0)) if here else os.cpu_count() or 1) + 1, MOST_WORKERS)
