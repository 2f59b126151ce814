"""Elastic restart: when a node or a rank is killed, training goes on from the last checkpoint."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from course_kit import ranks
from course_kit.ranks import RankFailure
from course_lib.parallel import survive

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo's elastic agents need a POSIX system")


def test_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    survive.note(tmp_path, step=0, loss=1.0)
    with pytest.raises(ValueError, match="has a run already"):
        survive.survive(tmp_path, 5)


def test_a_survivor_that_ends_badly_says_why(tmp_path: Path) -> None:
    (tmp_path / "second.txt").write_text("its last words")
    survivor = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with survivor, pytest.raises(RuntimeError, match="(?s)survivor ended with 3.*its last words"):
        survive.wait_for(tmp_path, 2, survivor, deadline=float("inf"))


def check_no_trace(log: list[dict[str, Any]], steps: int, every: int, learned: float = 0.0) -> None:
    """The loss curve is one process's; no step is left out, and who begins anew begins at a checkpoint."""
    lines = [line for line in log if "loss" in line]
    numbers = [line["ranks"] for line in lines]
    assert set(numbers) == {4, 2} and numbers == sorted(numbers, reverse=True)
    for before, after in itertools.pairwise(lines):
        last, first = before["step"], after["step"]
        assert first == last + 1 or (first % every == 0 and last - 2 * every < first <= last), f"{last}, then {first}"
    curve = {line["step"]: line["loss"] for line in lines}  # of a step that comes again, the last
    alone = survive.train_alone(steps)
    off = max(abs(curve[step] - loss) for step, loss in enumerate(alone))
    assert off < 1e-10, f"the loss is off by {off:.1e}"
    assert alone[-1] < alone[0] - learned


def until_a_rank_is_killed(folder: Path) -> None:
    """Two replicas of two stages, of which the last rank dies after six steps; checkpoints are written every two."""
    taken = itertools.count(1)

    def pause(_: float) -> None:
        if next(taken) == 6 and dist.get_rank() == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(survive, "time", SimpleNamespace(sleep=pause, time=time.time)):
        survive.train(folder, steps=9, every=2, pipeline=2)


def test_a_killed_rank_leaves_no_trace_in_the_loss_curve(tmp_path: Path) -> None:
    """Half of the ranks go on from the checkpoint of all."""
    with pytest.raises(RankFailure, match="SIGKILL"):
        ranks.run(until_a_rank_is_killed, tmp_path, world_size=4, diagnose=False)
    ranks.run(survive.train, tmp_path, 9, 2, pipeline=2, world_size=2, diagnose=False)
    check_no_trace(survive.notes(tmp_path), 9, 2)


@pytest.mark.nightly
@pytest.mark.timeout(1000)  # ten processes import torch, one after the other where there are few cores
def test_under_torchrun_neither_a_killed_node_nor_a_killed_rank_does(tmp_path: Path) -> None:
    """A node is a replica of two stages, and the other one reads the checkpoint of both.

    Then one of its two ranks is killed, and its agent puts another in its place.
    """
    log = survive.survive(tmp_path, 10, kill_rank_at=20, steps=30, every=4, pause_s=0.1, pipeline=2, timeout_s=900)
    (killed,) = [line["pid"] for line in log if line.get("event") == "rank killed"]
    assert int((tmp_path / "rank-1.pid").read_text()) != killed, "nobody took the killed rank's place"
    check_no_trace(log, 30, 4, learned=0.5)
