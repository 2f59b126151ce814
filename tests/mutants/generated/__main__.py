"""`python -m tests.mutants.generated lab05 --sample 40`: edit answers mechanically, and list what keeps all points.

What was judged is noted in `build/generated`, so that a run that was interrupted goes on; `--survivors` judges again
what survived, after its checks have changed. Each survivor belongs into `labNN.toml`: `right: why`, where the edit
changes nothing that the contract asks for; `closed: q2-hidden`, where a check tells it now; `open: what would tell it`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("COURSE_RANKS_IMPORT", "tests.preloaded")

from course_kit.checks import check
from course_kit.tables import as_text
from course_tools.labs import Lab, find_labs
from tests.labs.conftest import Hurried, freeze_imported

from .edits import Edit
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
    for number, lab in enumerate(labs, 1):
        try:
            _judge(lab, chosen.sample, chosen.seed, chosen.survivors)
        except KeyboardInterrupt:
            print("interrupted: the same command goes on from here")
            labs = labs[:number]
            break
    rows = [_row(lab) for lab in labs]
    head = ["lab", "edits", "judged", "caught", "right", "closed", "wrong", "wrong share", "not listed"]
    print(as_text(head, [[str(cell) for cell in row] for row in rows]))
    return int(any(row[-1] for row in rows))


def _prepare() -> None:
    """As the tests of known-wrong answers do: answers that wait are not waited for, and old objects stand aside."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, too: it ends what does not end
    check.OwnTime = Hurried  # type: ignore[misc]
    freeze_imported()


def _judge(lab: Lab, size: int, seed: int, again: bool) -> None:
    known, found = _noted(lab), edits_of(lab)
    survived = [edit for edit in found if known.get(_key(edit)) == ""]
    wanted = survived if again else [*in_the_check(lab), *sample(found, size, seed)]
    for number, edit in enumerate(wanted, 1):
        if again or _key(edit) not in known:
            lost = known[_key(edit)] = lost_by(lab, edit)[:300]
            NOTES.mkdir(parents=True, exist_ok=True)
            (NOTES / f"{lab.number}.json").write_text(json.dumps(known, ensure_ascii=False, indent=0), "utf-8")
            said = f"caught by {lost.split(':')[0]}" if lost else f"SURVIVES {_key(edit)}"
            print(f"{lab.number} {number}/{len(wanted)} {said}", flush=True)


def _key(edit: Edit) -> str:
    return f"{edit.grade_id}: {edit.name}"


def _noted(lab: Lab) -> dict[str, str]:
    """The key of every edit that was judged and is still made → what it lost."""
    file = NOTES / f"{lab.number}.json"
    judged = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return {key: judged[key] for key in map(_key, edits_of(lab)) if key in judged}


def _row(lab: Lab) -> list[object]:
    noted, verdicts = _noted(lab), {f"{cell}: {name}": verdict for (cell, name), verdict in listed(lab).items()}
    survived = [key for key, lost in noted.items() if not lost]
    kinds = Counter(verdicts.get(key, "unlisted").split(":")[0] for key in survived)
    closed = sum(verdict.startswith("closed") for verdict in verdicts.values())
    wrong = len(survived) - kinds["right"]
    share, caught = f"{wrong / max(len(noted), 1):.1%}", len(noted) - len(survived)
    return [lab.number, len(edits_of(lab)), len(noted), caught, kinds["right"], closed, wrong, share, kinds["unlisted"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
