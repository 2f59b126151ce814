"""`python -m tests.mutants.random --count N --seed S`: the share of random edits that the tests notice.

The edits are those of `generated/edits.py` (mutmut's operators and five of our own), in `course_lib` and `course_kit`.
Each is made in a checkout of its own, and judged by the tests that `start.py test changed` would choose: by the default
first, and where that notices nothing, by those that wait. What reads a clock is left out, and so are records of
notebooks, which notice every change of a byte. A survivor is a line that could be wrong: write the test that it lacks,
or say why there can be none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.changed import touched_files
from tests.mutants.generated.edits import edits

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_suffix(".json")
MUTATED = ("course_lib", "course_kit")
LIMIT_S = {"default": 900, "nightly": 900}
"""Seconds for the tests of one mutant; more than that is an edit that does not end."""
STAGES = {"default": "not nightly and not timed and not browser", "nightly": "nightly and not browser and not sandbox"}
RECORDS = ("tests/notebooks", "tests/foreign", "tests/browser", "tests/mutants")
"""Tests that are left out: the records of notebooks, and what needs more than the extra `test`."""
OPTIONS = ("-q", "-x", "-p", "no:nbval", "-p", "no:cacheprovider", "--timeout", "120", "--tb", "line")
DONE = "killed", "survived"


class Mutant(NamedTuple):
    """One edited module."""

    path: str
    name: str
    source: str


def mutants(root: Path, seed: int) -> Iterator[Mutant]:
    """Random edits without end: a module by its length, then one of its edits."""
    draw = random.Random(seed)
    files = [path for package in MUTATED for path in sorted((root / package).rglob("*.py"))]
    texts = [path.read_text("utf-8") for path in files]
    while True:
        (number,) = draw.choices(range(len(files)), [len(text) for text in texts])
        marked = f"### BEGIN SOLUTION\n{texts[number]}### END SOLUTION\n"
        if found := edits("", marked):
            edit = draw.choice(found)
            source = edit.source.removeprefix("### BEGIN SOLUTION\n").removesuffix("### END SOLUTION\n")
            yield Mutant(files[number].relative_to(root).as_posix(), edit.name, source)


@contextlib.contextmanager
def checkout() -> Iterator[Path]:
    """A checkout of HEAD beside this one, without the environment."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        folder = Path(place).resolve() / "course"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(folder)], cwd=ROOT, check=True)
        try:
            yield folder
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=ROOT, check=True)


def tests_of(root: Path, path: str) -> list[str]:
    """The files of tests that a module touches, those of its own room first."""
    found = [file.relative_to(root).as_posix() for file in touched_files({root / path}, root)]
    room = f"tests/{path.split('/')[1].removesuffix('.py')}"
    stem = Path(path).stem.strip("_")
    found = [name for name in found if not name.startswith(RECORDS)]
    return sorted(found, key=lambda name: (stem not in name, not name.startswith(room), name.startswith("tests/labs")))


def outcome(root: Path, stage: str, files: list[str]) -> tuple[str, str]:
    """`killed` or `survived`, and the first test that failed, of one stage of the tests in these files."""
    said = root.with_name(f"{stage}.txt")
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *OPTIONS, "-m", STAGES[stage], *files, "-k", "not stored_notebooks"],
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S[stage])
        except subprocess.TimeoutExpired:
            return DONE[0], "it does not end"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    failed = [line for line in said.read_text("utf-8", "replace").splitlines() if line.startswith(("FAILED", "ERROR"))]
    return DONE[code in (0, 5)], failed[0][:160] if failed else ""


def judged(root: Path, mutant: Mutant) -> dict[str, object]:
    """The verdict on one mutant: by which stage it was killed, by which test, after how many seconds."""
    files, begin = tests_of(root, mutant.path), time.perf_counter()
    place = root / mutant.path
    before = place.read_text("utf-8")
    place.write_text(mutant.source, "utf-8")
    try:
        for stage in STAGES:
            verdict, test = outcome(root, stage, files) if files else (DONE[1], "")
            if verdict == DONE[0]:
                break
    finally:
        place.write_text(before, "utf-8")
    by = stage if verdict == DONE[0] else ""
    seconds = round(time.perf_counter() - begin, 1)
    return {"path": mutant.path, "edit": mutant.name, "killed by": by, "test": test, "seconds": seconds}


def table(results: list[dict[str, object]]) -> str:
    """The shares killed, and the survivors."""
    default = sum(row["killed by"] == "default" for row in results)
    everything = default + sum(row["killed by"] == "nightly" for row in results)
    left = [f"  {row['path']}: {row['edit']}" for row in results if not row["killed by"]]
    shares = f"default {default / len(results):.1%}, all {everything / len(results):.1%}"
    return "\n".join([f"{len(results)} edits; killed by {shares}; survivors:", *left])


def main() -> None:
    """Judge the edits that the results file does not hold yet, writing each as it comes."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.random", description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="number of edits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", type=Path, default=RESULTS, help="the results file")
    options = parser.parse_args()
    known = json.loads(options.to.read_text("utf-8")) if options.to.exists() else []
    have = {(row["path"], row["edit"]) for row in known if row["seed"] == options.seed}
    with checkout() as root:
        for _, mutant in zip(range(options.count), mutants(root, options.seed)):
            if mutant[:2] not in have:
                known.append({"seed": options.seed, **judged(root, mutant)})
                options.to.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", "utf-8")
                print(*known[-1].values(), sep="  ", flush=True)
    print(table([row for row in known if row["seed"] == options.seed]))


if __name__ == "__main__":
    main()
