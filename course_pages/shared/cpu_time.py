"""Seconds of the processor: what other programs of a busy machine take is not in them."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable


def cpu_seconds(step: Callable[..., object], *given: object, repeats: int = 5) -> float:
    """CPU seconds of a call with what is given: the least of some, after one that does not count."""
    step(*given)
    return min(timeit.repeat(lambda: step(*given), timer=time.process_time, number=1, repeat=repeats))
