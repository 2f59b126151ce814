"""One call on all ranks, watched from the notebook until every rank returned or something is known to be wrong."""

from __future__ import annotations

import time
from typing import Any

from course_kit.own_time import OwnTime
from course_kit.ranks._diagnosis.matching import Matcher, Mismatch, PointToPointCall
from course_kit.ranks._diagnosis.report import Evidence, RankReport
from course_kit.ranks._diagnosis.stacks import fault_text
from course_kit.ranks._processes.prints import Printer
from course_kit.ranks._processes.wire import Position
from course_kit.ranks._processes.worker_group import WorkerGroup

_GRACE_S = 1.0
"""When something is wrong, the ranks get this long to end or to block, so that the report shows them as they are."""
_STUCK_S = 1.0
"""Ranks that wait for each other this long without any movement are deadlocked."""
_STUCK_IN_TROUBLE_S = 0.1
"""… and when something is known to be wrong anyway, this long."""
_STUCK_BY_A_LOSS_S = 5.0
"""… and when a message may be lost, or may only be slow to arrive, this long."""
_ANSWER_S = 0.3
"""A rank that does not say within this time where it is gets asked by a signal."""


class WatchedCall:
    """Collects the messages of the ranks. `blobs()` gives the pickled results, or raises a `RankFailure`."""

    def __init__(self, workers: WorkerGroup, timeout_s: float, diagnose: bool) -> None:
        self._workers = workers
        self._diagnose = diagnose
        self._timeout_s = timeout_s
        self._hurry_until: float | None = None  # a time, once something is known to be wrong
        self._printer = Printer(workers.world_size)
        self._matcher = Matcher()
        self._seen = Evidence(workers.world_size, timeout_s)
        self._blobs: dict[int, bytes] = {}
        self._stuck_since: dict[frozenset[tuple[int, int]], float] = {}
        self._all_intact = True

    def blobs(self) -> list[bytes]:
        """The pickled results in rank order.

        Raises:
            RankFailure: a rank did not return, or the ranks' communication calls contradict each other.
        """
        self._own = OwnTime(lambda: [self._workers.pids[rank] for rank in self._unfinished()])
        try:
            self._listen()
            if not self._seen.is_clean:
                self._ask_where()
                self._ask_by_signal()
                self._seen.lost = self._losses()
                self._seen.unanswered = self._matcher.unanswered(set(self._blobs))  # more ranks are known by now
        finally:
            self._show_prints()
        if not self._seen.is_clean:
            raise self._seen.failure()
        return [self._blobs[rank] for rank in range(self._workers.world_size)]

    @property
    def leaves_group_usable(self) -> bool:
        """Whether all ranks returned and can make another call: none left its group, and no call is left open."""
        return self._seen.is_clean and self._all_intact and not self._matcher.has_open_calls

    def _listen(self) -> None:
        while self._unfinished():
            left = self._left_s()
            if left <= 0:
                self._seen.cannot_say = self._own.cannot_say(self._timeout_s)
                return
            heard = self._hear(min(left, 0.03 if self._hurry_until else 0.25))
            mismatch = self._seen.mismatch
            if mismatch and set(mismatch.members) <= {*mismatch.calls, *self._seen.ended}:
                return
            doubtful = self._hurry_until or self._matcher.has_open_calls or self._matcher.lost
            if self._diagnose and not heard and doubtful and self._is_stuck():
                return

    def _left_s(self) -> float:
        """Seconds that the ranks may still take: time that other programs on this machine cost them is not counted."""
        if self._hurry_until is not None:
            return self._hurry_until - time.monotonic()
        self._own.look()
        return self._own.left_s(self._timeout_s)

    def _unfinished(self) -> set[int]:
        return set(range(self._workers.world_size)) - set(self._seen.ended)

    def _hear(self, wait_s: float) -> bool:
        """Take the messages that arrive within `wait_s`; return whether there were any."""
        heard = list(self._workers.messages(wait_s))
        for rank, message in heard:
            self._take(rank, message)
        return bool(heard)

    def _take(self, rank: int, message: tuple[Any, ...]) -> None:
        match message:
            case "out", stream, text:
                self._printer.take(rank, stream, text)
            case "entered", call:
                self._seen.latest[rank] = call
                self._note(self._matcher.take(rank, call))
            case "received", call:
                self._note(self._matcher.received_from_anyone(call))
            case "lost", call:
                self._matcher.lose(call)
            case "here", position:
                self._seen.positions[rank] = position
            case "returned", blob, reusable:
                self._all_intact &= reusable
                self._blobs[rank] = blob
                self._seen.ended[rank] = RankReport(rank, "returned")
                self._note(None)
            case "raised", error, text:
                self._seen.ended[rank] = RankReport(rank, "raised", traceback=text, error=error)
                self._hurry()
            case ("gone",):
                code = self._workers.launcher.exit_code(self._workers.number, rank, wait_s=5.0)
                self._blobs.pop(rank, None)
                words, stack = fault_text(self._workers.logs[rank].news())
                self._seen.ended[rank] = RankReport(rank, "died", stack, exit_code=code, last_words=words)
                self._hurry()

    def _losses(self) -> dict[int, PointToPointCall]:
        """Rank that waits for a message to come or to be taken → the other end's call, if its handle is gone."""
        waiting = {rank: self._seen.positions[rank].waiting for rank in self._unfinished() & set(self._seen.positions)}
        found = {rank: self._matcher.lost_for(wait.call) for rank, wait in waiting.items() if wait}
        return {rank: other for rank, other in found.items() if other}

    def _note(self, mismatch: Mismatch | None) -> None:
        """Keep a contradiction that was found; look also for calls that a rank which returned should have made."""
        self._seen.mismatch = self._seen.mismatch or mismatch
        if self._blobs:
            self._seen.unanswered = self._seen.unanswered or self._matcher.unanswered(set(self._blobs))
        if self._seen.mismatch or self._seen.unanswered:
            self._hurry()

    def _hurry(self) -> None:
        if self._hurry_until is None:
            self._hurry_until = time.monotonic() + min(_GRACE_S, max(0.0, self._left_s()))

    def _ask_where(self) -> None:
        """Ask every rank where it is, and wait for the answers of those that have not ended."""
        self._seen.positions.clear()
        self._workers.send_to_all(("where",))
        end = time.monotonic() + _ANSWER_S
        while self._unfinished() - set(self._seen.positions) and time.monotonic() < end:
            self._hear(0.05)

    def _ask_by_signal(self) -> None:
        """Ask silent ranks by a signal: where the interpreter's lock is held, the fault handler still answers."""
        silent = self._unfinished() - set(self._seen.positions)
        for rank in silent:
            self._workers.logs[rank].news()  # skipped: of interest are the lines after these
            self._workers.launcher.signal(self._workers.number, rank)
        if silent:
            time.sleep(0.1)
        for rank in silent:
            _, stack = fault_text(self._workers.logs[rank].news())
            self._seen.positions[rank] = Position("", stack, None, "")

    def _is_stuck(self) -> bool:
        """Whether all unfinished ranks wait, directly or not, for ranks that ended or for each other."""
        self._ask_where()
        waiting = {rank: position.waiting for rank, position in self._seen.positions.items() if position.waiting}
        missing = {rank: self._matcher.waits_for(wait.call) for rank, wait in waiting.items()}
        stuck = set(missing)
        # A rank that waits for a free one will be free.
        while freed := {rank for rank in stuck if not missing[rank] & (stuck | set(self._seen.ended))}:
            stuck -= freed
        tickets = frozenset((rank, waiting[rank].ticket) for rank in stuck)
        now = time.monotonic()
        self._stuck_since = {tickets: self._stuck_since.get(tickets, now)}
        patience_s = _STUCK_BY_A_LOSS_S if stuck & set(self._losses()) else _STUCK_S
        if not stuck or now - self._stuck_since[tickets] < (_STUCK_IN_TROUBLE_S if self._hurry_until else patience_s):
            return False
        if not self._hurry_until:
            self._seen.deadlocked = stuck
            self._hurry()
        return stuck == self._unfinished()

    def _show_prints(self) -> None:
        for rank in self._blobs:
            if text := self._workers.logs[rank].news():
                self._printer.take(rank, "stderr", text)
        self._printer.finish()
