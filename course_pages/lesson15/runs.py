"""Clocks for lesson 15's cells, of the processor and of a thread alone; a save, and runs that are killed and go on."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from course_kit import ranks
from course_kit.units import Count
from course_pages.shared.cpu_time import cpu_seconds as cpu_seconds  # the page's clock


def own_seconds(work: Callable[..., Any], *given: Any) -> float:
    """Seconds that a call takes in this thread: computing, and waiting, for Python's lock, say.

    Being ready while another program has the core does not count, where the kernel tells it (Linux).
    """
    start = time.perf_counter() - _kept_waiting_s()
    work(*given)
    return time.perf_counter() - _kept_waiting_s() - start


def _kept_waiting_s() -> float:
    """Seconds that this thread was ready to run so far, and had no core."""
    told = Path("/proc/thread-self/schedstat")
    return int(told.read_text().split()[1]) / 1e9 if told.exists() else 0.0


def save(file: Path, state: Any) -> None:
    """Write a second file, and put it in the place of `file` by a rename, which happens wholly or not at all."""
    torch.save(state, f"{file}.new")
    os.replace(f"{file}.new", file)


def restarts(train: Callable[..., Any], folder: Path, whole: torch.Tensor) -> dict[str, Count]:
    """Kill a run on 2 ranks in each of its steps; go on with 1, 2, 3, 4 and 8 ranks, and with 1 or 3 workers.

    Returns:
        Samples lost and read twice, and diaries in another order than `whole`, that of a run without a kill.
    """
    seen = dict.fromkeys(("lost", "twice", "another order"), 0)
    for step in range(len(whole)):
        killed = folder / f"killed {step}"
        try:
            ranks.run(train, killed, 2, step, world_size=2)
        except ranks.RankFailure as failure:
            assert failure.reports[1].exit_code == -signal.SIGKILL
        for world_size in (1, 2, 3, 4, 8):
            file = folder / f"{step} on {world_size}"
            if killed.exists():
                shutil.copy(killed, file)
            diary = ranks.run(train, file, 1 + 2 * (step % 2), world_size=world_size, diagnose=False)[0]
            times = diary.flatten().bincount(minlength=whole.numel())
            seen["lost"] += int((times == 0).sum())
            seen["twice"] += int((times > 1).sum())
            seen["another order"] += int(not torch.equal(diary, whole))
    return {name: Count(n) for name, n in seen.items()}
