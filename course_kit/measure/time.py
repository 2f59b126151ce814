"""Seconds, as the median of several runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from course_kit.units import Seconds


def seconds(fn: Callable[[], Any], repeats: int = 5, warmup: int = 1) -> Seconds:
    """The median duration of `fn()`. On a GPU the clock stops when the work has finished, not when it was queued.

    Args:
        fn: called without arguments, `warmup + repeats` times.
        repeats: runs that count. Their median shrugs off one that the machine disturbed.
        warmup: runs before the clock starts: the first run allocates memory and starts threads.

    Raises:
        ValueError: `repeats` is less than 1, or `warmup` negative.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"seconds needs repeats of at least 1 and warmup of at least 0; given {repeats} and {warmup}")
    for _ in range(warmup):
        fn()
    durations = []
    for _ in range(repeats):
        _wait_for_gpu()
        start = time.perf_counter()
        fn()
        _wait_for_gpu()
        durations.append(time.perf_counter() - start)
    return Seconds(statistics.median(durations))


def _wait_for_gpu() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
