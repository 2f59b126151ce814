"""Seconds of the processor, without those of other programs on a busy machine."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable


def cpu_seconds(step: Callable[..., object], *given: object, repeats: int = 5) -> float:
    """CPU seconds of a call `step(*given)`: the least of `repeats`, after one that does not count."""
    step(*given)
    return min(timeit.repeat(lambda: step(*given), timer=time.process_time, number=1, repeat=repeats))
