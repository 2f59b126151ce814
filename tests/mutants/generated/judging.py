"""What the checks of a lab say of edited answers, and the lists of those that survive."""

from __future__ import annotations

import functools
import random
import tomllib
from pathlib import Path

from course_tools.labs import Lab
from tests.labs.running import run_lab, solution_of

from .edits import Edit, edits

HERE = Path(__file__).parent
LIMIT_S = 20.0
"""What a cell may take; an edit that does not end is caught."""
KINDS = ("right", "closed", "open")


@functools.lru_cache(32)
def edits_of(lab: Lab, cell: str = "") -> list[Edit]:
    """Every edit of a lab's answers, or of one cell's."""
    return [edit for key, source in solution_of(lab).items() if cell in ("", key) for edit in edits(key, source)]


def sample(found: list[Edit], size: int, seed: int) -> list[Edit]:
    """`size` of them, those of a cell together; a larger sample of the same seed holds the smaller one."""
    drawn = list(range(len(found)))
    random.Random(seed).shuffle(drawn)
    return [found[number] for number in sorted(drawn[:size])]


def in_the_check(lab: Lab) -> list[Edit]:
    """Two edits of one of a lab's answers: the stage `labs` judges these, always the same."""
    cells = list(solution_of(lab))
    found = edits_of(lab, random.Random(lab.number).choice(cells)) or edits_of(lab, cells[-1])
    return sample(found, 2, 1)


def lost_by(lab: Lab, edit: Edit) -> str:
    """The first check of the whole lab that an edited answer loses, and what it said; nothing if it keeps all."""
    try:
        failures = run_lab(lab, {edit.grade_id: edit.source}, limit_s=LIMIT_S, first=True)
    except Exception as problem:  # the cell itself does not run
        return f"(its cell) {type(problem).__name__}: {problem}"
    return next((f"{check}: {said}" for check, said in failures.items()), "")


def listed(lab: Lab) -> dict[tuple[str, str], str]:
    """(cell, edit) → verdict of each survivor that somebody has judged: `right: why`, `closed: check`, `open: case`."""
    file = HERE / f"{lab.number}.toml"
    cells = tomllib.loads(file.read_text("utf-8")) if file.exists() else {}
    return {(cell, name): verdict for cell, verdicts in cells.items() for name, verdict in verdicts.items()}
