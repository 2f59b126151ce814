"""Speed, against the alternative measured in the same run: what holds however busy the machine is."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "ranks.py"


def seconds_of(way: str) -> dict[str, float]:
    """Median seconds of one way to run 4 ranks, timed by the benchmark in a fresh interpreter."""
    command = [sys.executable, str(BENCHMARK), "--way", way, "--repeats", "1"]
    # The other ways prepare no GPU and import nothing for tests, so ours shall not either.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "COURSE_RANKS_IMPORT": ""}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=110, env=environment)
    return {kind: statistics.median(times) for kind, times in json.loads(done.stdout.splitlines()[-1]).items()}


def test_a_later_call_is_200_times_faster_than_spawn_and_a_first_call_no_slower() -> None:
    ours, spawn = seconds_of("ranks.run"), seconds_of("torch.multiprocessing.spawn")
    assert spawn["later"] / ours["later"] >= 200
    assert ours["first"] < max(3.0, spawn["first"])
