"""Elastic restart under torchrun: a node is killed, the other goes on from the last checkpoint with fewer ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.parallel import survive

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo's elastic agents need a POSIX system")

STEPS, EVERY, KILL_AT = 30, 5, 14


@pytest.mark.timeout(300)  # eight processes import torch, one after the other where there are few cores
def test_a_killed_node_leaves_no_trace_in_the_loss_curve(tmp_path: Path) -> None:
    log = survive.survive(tmp_path, KILL_AT, steps=STEPS, every=EVERY)
    death = [place for place, line in enumerate(log) if line.get("event") == "node killed"][0]
    lines = [line for line in log if "loss" in line]
    before, after = lines[:death], lines[death:]
    assert {line["ranks"] for line in before} == {4}
    assert {line["ranks"] for line in after} == {2}
    first, last = after[0]["step"], before[-1]["step"]
    assert first % EVERY == 0 and last - 2 * EVERY < first <= last + 1, f"step {last} was followed by step {first}"
    assert [line["step"] for line in after] == list(range(first, STEPS))
    alone = survive.train_alone(STEPS)
    off = max(abs(ours - theirs) for ours, theirs in zip(survive.curve(log), alone, strict=True))
    assert off < 1e-10, f"the loss is off by {off:.1e}"
    assert alone[-1] < alone[0] - 1


def test_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    survive.note(tmp_path, step=0, loss=1.0)
    with pytest.raises(ValueError, match="has a run already"):
        survive.survive(tmp_path, 5)


def test_a_survivor_that_ends_badly_says_why(tmp_path: Path) -> None:
    (tmp_path / "second.txt").write_text("its last words")
    survivor = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with survivor, pytest.raises(RuntimeError, match="(?s)survivor ended with 3.*its last words"):
        survive.wait_for(tmp_path, 2, survivor, deadline=float("inf"))
