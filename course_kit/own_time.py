"""A clock for limits: it slows down while a machine has too few cores for the processes that it watches.

Fifty seconds of wall time are enough for a right answer on a quiet machine, and too few on one with forty jobs. Fifty
seconds on this clock are the same on both. Computing counts, and so does waiting for a message or sleeping; being ready
to run while others have the cores does not. (Linux tells the ready time of each thread, in
/proc/PID/task/TID/schedstat; on other systems every second counts.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

MOST = 9
"""A limit is stretched by at most this many times itself."""
BUSY = "other programs had the cores for most of the time: run it again on a quieter machine"
"""The words for a limit that was reached and proves nothing."""


def stretched(limit_s: float, lost_s: float) -> float:
    """Wall seconds that a limit comes to, when `lost_s` of them were lost to other programs."""
    return limit_s + min(lost_s, MOST * limit_s)


def cannot_say(limit_s: float, lost_s: float) -> bool:
    """Whether other programs took so many seconds that a limit which is reached proves nothing."""
    return lost_s >= MOST * limit_s


class OwnTime:
    """Seconds that processes have had since this object was made. Call `look` twice a second or more.

    While b of an interval passes with some thread ready, and the threads get c core-seconds where they would have had d
    on a machine of their own (the cores', or as many as they asked for), 1 - c/d of b is lost to others. The first look
    after a tenth of a second is the one that later looks are compared with: no time before that look counts as lost.

    Args:
        pids: the processes, asked at each look; they may come and go.
    """

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids, self._cores = pids, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self.lost_s = 0.0
        self._start = self._looked = time.monotonic()
        self._seen: dict[str, tuple[float, float]] | None = None

    def look(self) -> None:
        """Take note of the seconds lost since the last look; do nothing within a tenth of a second of that look."""
        if (now := time.monotonic()) < self._looked + 0.1:
            return
        interval_s, self._looked = now - self._looked, now
        before, self._seen = self._seen, self._threads()
        if before is None:
            return  # the first look
        had = {thread: ran - before.get(thread, (0, 0))[0] for thread, (ran, _) in self._seen.items()}
        wanted = {thread: sum(both) - sum(before.get(thread, (0, 0))) for thread, both in self._seen.items()}
        ready_s = min(interval_s, max(wanted.values(), default=0.0))
        if ready_s > 0:
            own_machine_s = min(self._cores * ready_s, sum(wanted.values()))
            self.lost_s += ready_s * max(0.0, 1 - sum(had.values()) / own_machine_s)

    def left_s(self, limit_s: float) -> float:
        """Wall seconds from now on in which a limit, counted from the start, is not reached in any case."""
        return self._start + stretched(limit_s, self.lost_s) - time.monotonic()

    def cannot_say(self, limit_s: float) -> bool:
        """Whether this limit, when it is reached, proves nothing."""
        return cannot_say(limit_s, self.lost_s)

    def _threads(self) -> dict[str, tuple[float, float]]:
        """Thread → seconds that it ran, and that it waited for a core."""
        found = {}
        for pid in self._pids():
            try:
                for task in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{task}/schedstat", "rb") as file:
                        ran, waited, _ = file.read().split()
                    found[task] = (int(ran) / 1e9, int(waited) / 1e9)
            except (OSError, ValueError):  # the process ended, or this system does not tell
                continue
        return found
