"""Elastic restart under torchrun: when a node or a rank is killed, training goes on from the last checkpoint."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from course_lib.parallel import survive

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo's elastic agents need a POSIX system")

STEPS, EVERY, KILL_AT, KILL_RANK_AT = 30, 4, 10, 20


@pytest.mark.slow
@pytest.mark.timeout(1000)  # ten processes import torch, one after the other where there are few cores
def test_neither_a_killed_node_nor_a_killed_rank_leaves_a_trace_in_the_loss_curve(tmp_path: Path) -> None:
    """Two replicas of two stages; a node is a replica, and the other one reads the checkpoint of both.

    Then one of its two ranks is killed, and its agent puts another in its place.
    """
    how: dict[str, Any] = {"steps": STEPS, "every": EVERY, "pause_s": 0.1, "pipeline": 2, "timeout_s": 900}
    log = survive.survive(tmp_path, KILL_AT, kill_rank_at=KILL_RANK_AT, **how)
    (killed,) = [line["pid"] for line in log if line.get("event") == "rank killed"]
    assert int((tmp_path / "rank-1.pid").read_text()) != killed, "nobody took the killed rank's place"
    lines = [line for line in log if "loss" in line]
    numbers = [line["ranks"] for line in lines]
    assert set(numbers) == {4, 2} and numbers == sorted(numbers, reverse=True)
    for before, after in itertools.pairwise(lines):  # no step is left out; who begins anew begins at a checkpoint
        last, first = before["step"], after["step"]
        assert first == last + 1 or (first % EVERY == 0 and last - 2 * EVERY < first <= last), f"{last}, then {first}"
    curve = {line["step"]: line["loss"] for line in lines}  # of a step that comes again, the last
    alone = survive.train_alone(STEPS)
    off = max(abs(curve[step] - loss) for step, loss in enumerate(alone))
    assert off < 1e-10, f"the loss is off by {off:.1e}"
    assert alone[-1] < alone[0] - 0.5


def test_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    survive.note(tmp_path, step=0, loss=1.0)
    with pytest.raises(ValueError, match="has a run already"):
        survive.survive(tmp_path, 5)


def test_a_survivor_that_ends_badly_says_why(tmp_path: Path) -> None:
    (tmp_path / "second.txt").write_text("its last words")
    survivor = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with survivor, pytest.raises(RuntimeError, match="(?s)survivor ended with 3.*its last words"):
        survive.wait_for(tmp_path, 2, survivor, deadline=float("inf"))
