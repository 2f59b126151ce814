"""Clocks for lesson 15's cells, of the processor and of a thread alone; a save that happens or does not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from course_pages.shared.cpu_time import cpu_seconds as cpu_seconds  # the page's clock


def own_seconds(work: Callable[..., Any], *given: Any) -> float:
    """Seconds that a call takes in this thread: computing, and waiting for others, for Python's lock, say.

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
    """Write beside the file, and put what was written in its place by a rename, which happens wholly or not at all."""
    torch.save(state, f"{file}.new")
    os.replace(f"{file}.new", file)
