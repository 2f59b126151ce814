"""Seconds, as the median of several runs."""

from __future__ import annotations

import gc
import statistics
import time
import timeit
from collections.abc import Callable
from typing import Any

import torch

from course_kit.units import Seconds


def seconds(fn: Callable[[], Any], repeats: int = 5, warmup: int = 1) -> Seconds:
    """The median duration of `fn()`. On a GPU the clock stops when the work has finished, not when it was queued.

    Args:
        fn: called without arguments, `warmup + repeats` times.
        repeats: runs that count. Their median shrugs off one that the machine disturbed.
        warmup: runs before these, which do not count: the first run allocates memory and starts threads.

    Raises:
        ValueError: `repeats` is less than 1, or `warmup` negative.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"seconds needs repeats of at least 1 and warmup of at least 0; given {repeats} and {warmup}")
    collecting = gc.enable if gc.isenabled() else gc.disable  # timeit itself switches the garbage collector off
    durations = timeit.repeat(fn, collecting, number=1, repeat=warmup + repeats, timer=_clock_s)
    return Seconds(statistics.median(durations[warmup:]))


def _clock_s() -> float:
    """The time at which a GPU, where one is in use, has done all queued work."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()
