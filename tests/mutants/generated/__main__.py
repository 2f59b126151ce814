"""`python -m tests.mutants.generated lab05 --sample 40`: edit answers mechanically, and list what keeps all points.

What was judged is noted in `build/generated`, so that a run that was interrupted goes on; `--survivors` judges again
what survived, after its checks have changed. Each survivor belongs into `labNN.toml`: `right: why`, where the edit
changes nothing that the contract asks for; `closed: q2-hidden`, where a check tells it now; `open: what would tell it`.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("COURSE_RANKS_IMPORT", "tests.preloaded")

from course_kit.checks import check
from course_kit.tables import as_text
from course_tools.labs import Lab, find_labs
from tests.labs.conftest import Hurried

from .judging import edits_of, in_the_check, listed, lost_by, sample

ROOT = Path(__file__).parents[3]
NOTES = ROOT / "build" / "generated"


def main(arguments: list[str]) -> int:
    """Judge the labs that are named, or all; 1 if an edit survives that no list knows."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.generated", description=__doc__)
    parser.add_argument("labs", nargs="*", help="as in lab05; all without a name")
    parser.add_argument("--sample", type=int, default=40, help="edits of each lab")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--survivors", action="store_true", help="judge again what survived before")
    chosen = parser.parse_args(arguments)
    labs = [lab for lab in find_labs(ROOT) if not chosen.labs or lab.number in chosen.labs]
    _prepare()
    rows = []
    for lab in labs:
        try:
            _judge(lab, chosen.sample, chosen.seed, chosen.survivors)
        except KeyboardInterrupt:
            print("interrupted: the same command goes on from here")
            labs = labs[: labs.index(lab) + 1]
            break
    rows = [_row(lab) for lab in labs]
    head = ["lab", "edits", "judged", "caught", "right", "closed", "wrong", "wrong share", "not listed"]
    print(as_text(head, [[str(each) for each in row] for row in rows]))
    return int(any(row[-1] for row in rows))


def _prepare() -> None:
    """As the tests of known-wrong answers do: answers that wait are not waited for, and old objects stand aside."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, too: it ends what does not end
    check.OwnTime = Hurried  # type: ignore[misc]
    for name in ("tests.preloaded", "nbgrader.preprocessors"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _judge(lab: Lab, size: int, seed: int, again: bool) -> None:
    known = _noted(lab)
    found = edits_of(lab)
    wanted = (
        [edit for edit in found if known.get(_key(edit)) == ""]
        if again
        else [*in_the_check(lab), *sample(found, size, seed)]
    )
    for number, edit in enumerate(wanted, 1):
        if not again and _key(edit) in known:
            continue
        known[_key(edit)] = ""
        begin = time.process_time()
        lost = lost_by(lab, edit)
        note = {
            "cell": edit.grade_id,
            "edit": edit.name,
            "lost": lost[:300],
            "s": round(time.process_time() - begin, 2),
        }
        NOTES.mkdir(parents=True, exist_ok=True)
        with (NOTES / f"{lab.number}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(note, ensure_ascii=False) + "\n")
        said = f"caught by {lost.split(':')[0]}" if lost else f"SURVIVES {edit.grade_id}: {edit.name}"
        print(f"{lab.number} {number}/{len(wanted)} {said}", flush=True)


def _key(edit: tuple[str, str, str]) -> tuple[str, str]:
    return edit[0], edit[1]


def _noted(lab: Lab) -> dict[tuple[str, str], str]:
    """(cell, edit) → what it lost, of every edit that was judged and is still made."""
    file = NOTES / f"{lab.number}.jsonl"
    notes = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    judged = {(note["cell"], note["edit"]): note["lost"] for note in notes}
    return {_key(edit): judged[_key(edit)] for edit in edits_of(lab) if _key(edit) in judged}


def _row(lab: Lab) -> list[object]:
    noted, verdicts = _noted(lab), listed(lab)
    survived = [key for key, lost in noted.items() if not lost]
    kinds = Counter(verdicts.get(key, "unlisted").split(":")[0] for key in survived)
    closed = sum(verdict.startswith("closed") for verdict in verdicts.values())
    wrong = kinds["open"] + kinds["closed"] + kinds["unlisted"]
    share = f"{wrong / max(len(noted), 1):.1%}"
    caught = len(noted) - len(survived)
    return [lab.number, len(edits_of(lab)), len(noted), caught, kinds["right"], closed, wrong, share, kinds["unlisted"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
