"""One call on all ranks, watched from the notebook until every rank returned or something is known to be wrong.

Lesson 00 uses this module without opening it.
"""

from __future__ import annotations

import math
import time
from typing import Any

from course_lib.ranks.crew import Crew
from course_lib.ranks.failures import RankFailure, RankReport, with_others
from course_lib.ranks.prints import Printer

_GRACE_S = 0.5
"""After a rank raised or died, the others get this long to end too, so that the report shows them as they are."""
_ANSWER_S = 0.5
"""A rank that does not say within this time where it is gets asked by a signal."""


class Call:
    """Collects what the ranks send. `blobs()` gives the pickled results, or raises what went wrong."""

    def __init__(self, crew: Crew, timeout_s: float) -> None:
        self._crew = crew
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._timed_out = False
        self._printer = Printer(crew.world_size)
        self._blobs: dict[int, bytes] = {}
        self._ended: dict[int, RankReport] = {}
        self._positions: dict[int, str] = {}
        self.reusable = True

    def blobs(self) -> list[bytes]:
        """The pickled results in rank order.

        Raises:
            RankFailure: a rank did not return.
        """
        try:
            self._listen()
            if len(self._blobs) < self._crew.world_size:
                self._ask_the_others()
        finally:
            self._show_prints()
        if len(self._blobs) < self._crew.world_size:
            raise self._failure()
        return [self._blobs[rank] for rank in range(self._crew.world_size)]

    def _listen(self) -> None:
        while len(self._ended) < self._crew.world_size:
            left = self._deadline - time.monotonic()
            if left <= 0:
                return
            self._hear(min(left, 1.0))

    def _hear(self, wait_s: float) -> None:
        for rank, message in self._crew.messages(wait_s):
            getattr(self, f"_on_{message[0]}")(rank, *message[1:])

    def _on_out(self, rank: int, stream: str, text: str) -> None:
        self._printer.take(rank, stream, text)

    def _on_returned(self, rank: int, blob: bytes, reusable: bool) -> None:
        self._blobs[rank] = blob
        self._ended[rank] = RankReport(rank, "returned")
        self.reusable &= reusable

    def _on_raised(self, rank: int, error: str, text: str) -> None:
        self._ended[rank] = RankReport(rank, "raised", traceback=text, error=error)
        self._hurry()

    def _on_gone(self, rank: int) -> None:
        code = self._crew.exit_code(rank)
        self._blobs.pop(rank, None)
        self._ended[rank] = RankReport(rank, "died", exit_code=code, last_words=self._crew.logs[rank].news())
        self._hurry()

    def _on_here(self, rank: int, _ticket: int, stack: str) -> None:
        self._positions[rank] = stack

    def _hurry(self) -> None:
        self._deadline = min(self._deadline, time.monotonic() + _GRACE_S)

    def _ask_the_others(self) -> None:
        """Ask every rank that has not ended where it is: by message, then by signal."""
        self._crew.send_to_all(("where", 0))
        end = time.monotonic() + _ANSWER_S
        while not self._everyone_spoke() and time.monotonic() < end:
            self._hear(0.05)
        silent = [rank for rank in range(self._crew.world_size) if rank not in {*self._positions, *self._ended}]
        for rank in silent:
            self._crew.launcher.signal(self._crew.number, rank)
        if silent:
            time.sleep(0.1)

    def _everyone_spoke(self) -> bool:
        return len({*self._positions, *self._ended}) == self._crew.world_size

    def _show_prints(self) -> None:
        for rank, log in enumerate(self._crew.logs):
            if rank in self._blobs and (text := log.news()):
                self._printer.take(rank, "stderr", text)
        self._printer.finish()

    def _failure(self) -> RankFailure:
        reports = [self._ended.get(rank) or self._unfinished(rank) for rank in range(self._crew.world_size)]
        for state in ("died", "raised"):
            if first := [report.rank for report in reports if report.state == state]:
                return RankFailure(with_others(reports, first), reports)
        return RankFailure(f"not done after {self._timeout_s:g} s: {with_others(reports, [])}", reports)

    def _unfinished(self, rank: int) -> RankReport:
        stack = self._positions.get(rank) or self._crew.logs[rank].news()
        return RankReport(rank, "running", traceback=stack)


def check_timeout(timeout_s: Any) -> float:
    """`timeout_s` as a float.

    Raises:
        ValueError: it is not a positive number of seconds.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s={timeout_s!r}: give the seconds that a call may take, a number above 0 (60)")
    return float(timeout_s)
