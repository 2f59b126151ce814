"""Seconds of the processor: what other programs of a busy machine take is not in them."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(step: Callable[..., object], *given: object, repeats: int = 5) -> float:
    """CPU seconds of a call with what is given: the least of some, after one that does not count."""
    step(*given)
    took = []
    for _ in range(repeats):
        start = time.process_time()  # a busy machine does not lengthen this second
        step(*given)
        took.append(time.process_time() - start)
    return min(took)
