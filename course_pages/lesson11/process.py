"""What the operating system says of a process that trains: its highest resident set."""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch import nn

from course_kit import measure
from course_kit.units import Bytes
from course_lib.model import text


def highest_rss() -> int:
    """The most bytes of memory that this process has had from the system, so far."""
    if sys.platform == "win32":
        from psutil import Process

        return Process().memory_info().peak_wset
    from resource import RUSAGE_SELF, getrusage

    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def memory_of(kind: Callable[[], tuple[nn.Module, Callable[[], object]]]) -> tuple[Bytes, Bytes]:
    """Take two steps with the model and the step that `kind` makes: bytes of tensors at the peak, rise of the RSS."""
    before, stories = highest_rss(), text.stories(seed=0)
    with measure.memory() as record:
        model, step = kind()
        for number in range(2):
            model(*stories.batch(seed=0, step=number, rank=0, batch_size=4, context=32)).backward()
            step()
    return record.peak.total, Bytes(highest_rss() - before)
