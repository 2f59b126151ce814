"""Clocks for lesson 15's cells, of the process alone and of work that ranks share; a save that happens or does not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_kit import ranks
from course_pages.shared.cpu_time import cpu_seconds as cpu_seconds  # the page's clock


def seconds_on_ranks(work: Callable[[int], Any], world_size: int, repeats: int = 3) -> float:
    """Seconds until every rank has done `work(rank)`; the least of several runs, without the ranks' start."""
    return min(ranks.run(_timed, work, world_size=world_size)[0] for _ in range(repeats))


def _timed(work: Callable[[int], Any]) -> float:
    dist.barrier()
    start = time.perf_counter()
    work(dist.get_rank())
    dist.barrier()
    return time.perf_counter() - start


def save(file: Path, state: Any) -> None:
    """Write beside the file, and put what was written in its place by a rename, which happens wholly or not at all."""
    torch.save(state, f"{file}.new")
    os.replace(f"{file}.new", file)
