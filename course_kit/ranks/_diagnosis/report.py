"""The report of a call that failed: `RankFailure`, with one sentence for all ranks and a `RankReport` for each.

A hang on 4 processes is only a riddle until the report says which rank waits for which. So a failure starts with one
sentence that says so, and then tells the fate of every rank, with the reader's own lines. `Evidence` holds the ranks'
words, and finds that sentence. Pure data, no processes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from textwrap import indent
from typing import Literal

from course_kit.own_time import BUSY
from course_kit.ranks._diagnosis.matching import Call, CollectiveCall, Mismatch, PointToPointCall, Unanswered
from course_kit.ranks._processes.wire import Position

State = Literal["returned", "raised", "died", "waiting", "running"]
_PLURALS = {"waits": "wait", "was": "were", "has": "have", "calls": "call"}


@dataclass(frozen=True)
class WaitsIn:
    """The communication that a rank is blocked in.

    Attributes:
        collective: the name of the torch.distributed function ("all_reduce", "recv").
        site: the line of the call ("cell [5] line 7").
        sequence: number of such calls in this group, or with this peer, that came before, in this run; None if unknown.
        peers: the other end, in words ("from rank 0"), or "".
    """

    collective: str
    site: str
    sequence: int | None = None
    peers: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.collective, self.peers, f"({self.site})") if part)


@dataclass(frozen=True)
class RankReport:
    """The fate of one rank.

    Attributes:
        rank: the rank's number.
        state: "returned", "raised" (an exception), "died" (its process ended), "waiting" (blocked in a communication)
            or "running" (busy in code of its own when the call was ended).
            A rank whose connection broke because another one died counts as waiting.
        traceback: the exception's traceback if the rank raised, else its stack, with the reader's source lines.
        waits_in: the communication that a waiting rank is blocked in.
        exit_code: exit code of the process of a rank that died; minus the signal's number if a signal killed it.
        error: the exception in one line ("ValueError: …") if the rank raised.
        last_words: the prints of C code before the process died.
    """

    rank: int
    state: State
    traceback: str = ""
    waits_in: WaitsIn | None = None
    exit_code: int | None = None
    error: str = ""
    last_words: str = ""

    @property
    def fate(self) -> str:
        """The fate in words: "waits in all_reduce (cell [5] line 7)"."""
        return {
            "returned": "returned",
            "raised": f"raised {self.error}",
            "died": f"died ({exit_words(self.exit_code)})",
            "waiting": f"waits in {self.waits_in}",
            "running": "was still running",
        }[self.state]

    def __str__(self) -> str:
        return f"rank {self.rank} {self._account()}"

    def _account(self) -> str:
        """The fate, and below it the stack and the last words that explain it."""
        body = "\n".join(part.rstrip() for part in (self.traceback, self.last_words) if part)
        return self.fate + (":\n" + indent(body, "    ") if body else "")


def exit_words(code: int | None) -> str:
    """An exit code in words: "killed by SIGKILL", "exit code 3"."""
    if code is None:
        return "its connection closed"
    if code < 0:
        names = {known.value: known.name for known in signal.Signals}
        return f"killed by {names.get(-code, f'signal {-code}')}"
    return f"exit code {code}"


_OUT_OF_TIME = "not done after"
"""The beginning of a verdict that knows no other cause than the time limit."""


class RankFailure(RuntimeError):
    """At least one rank of a call did not return as it should, so the call has no result.

    Attributes:
        verdict: the failure, in one sentence.
        reports: one `RankReport` per rank, in rank order.
    """

    def __init__(self, verdict: str, reports: list[RankReport]) -> None:
        super().__init__(verdict, reports)
        self.verdict = verdict
        self.reports = reports

    @property
    def ran_out_of_time(self) -> bool:
        """Whether the time limit ended ranks that were busy: the machine is slow, or a loop has no end."""
        busy = any(report.state == "running" for report in self.reports)
        return busy and self.verdict.startswith(_OUT_OF_TIME)  # else it is known what went wrong

    def __str__(self) -> str:
        return "\n\n".join([self.verdict, *_told_once({report.rank: report._account() for report in self.reports})])

    def _render_traceback_(self) -> list[str]:
        """The lines that a notebook shows: the report. Its own stack would only show how ranks are supervised."""
        return f"{type(self).__name__}: {self}".splitlines()


def one_sentence(fates: Mapping[int, str], first: Collection[int] = ()) -> str:
    """The fates of all ranks as one sentence, the ranks in `first` first, equal fates said once.

    Example: "rank 1 raised ValueError: no; rank 0 waits in all_reduce (cell [5] line 7); ranks 2 and 3 returned".
    """
    ordered = sorted(fates, key=lambda rank: (rank not in first, rank))
    return "; ".join(_told_once({rank: fates[rank] for rank in ordered}))


def _told_once(stories: Mapping[int, str]) -> list[str]:
    """The ranks' stories, which begin with a verb; ranks with the same one share it: `ranks 0, 1 and 3 wait in …`."""
    tellers: dict[str, list[int]] = {}
    for rank, story in stories.items():
        tellers.setdefault(story, []).append(rank)
    told = []
    for story, (*others, last) in tellers.items():
        verb, space, rest = story.partition(" ")
        plural = f"ranks {', '.join(map(str, others))} and {last} {_PLURALS.get(verb, verb)}{space}{rest}"
        told.append(plural if others else f"rank {last} {story}")
    return told


# --- from evidence to a verdict ---------------------------------------------------------------------------------------

_LOST_PEER = re.compile(r"Connection (closed|reset)|Broken pipe|Socket closed|Read error")


@dataclass
class Evidence:
    """The evidence about one call when it is over.

    Attributes:
        world_size: the number of ranks.
        timeout_s: the call's time limit.
        ended: rank → its report, for those that returned, raised or died.
        latest: rank → the communication that it announced last.
        positions: rank → its position at the end, for the others; that of a rank that could not answer is only a stack.
        mismatch: calls that contradict each other.
        unanswered: calls that need a rank which returned.
        deadlocked: ranks that wait for each other.
        lost: rank → the other end of the transfer that it waits for, if that one's handle is gone without a wait.
        cannot_say: whether other programs kept the ranks from their cores for most of the time.
    """

    world_size: int
    timeout_s: float
    ended: dict[int, RankReport] = field(default_factory=dict)
    latest: dict[int, Call] = field(default_factory=dict)
    positions: dict[int, Position] = field(default_factory=dict)
    mismatch: Mismatch | None = None
    unanswered: Unanswered | None = None
    deadlocked: set[int] = field(default_factory=set)
    lost: dict[int, PointToPointCall] = field(default_factory=dict)
    cannot_say: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether all ranks returned and nothing speaks against their results."""
        returned = [report for report in self.ended.values() if report.state == "returned"]
        return len(returned) == self.world_size and not self.mismatch and not self.unanswered

    def failure(self) -> RankFailure:
        """The failure, with a report for each rank."""
        reports = [self._report(rank) for rank in range(self.world_size)]
        return RankFailure(self._verdict(reports), reports)

    def _verdict(self, reports: list[RankReport]) -> str:
        """The first cause comes first: a wrong call explains a crash, a crash explains a hang."""
        if self.mismatch:
            return contradiction(self.mismatch)
        fates = {report.rank: report.fate for report in reports}
        for state in ("died", "raised"):
            if first := [report.rank for report in reports if report.state == state]:
                return one_sentence(fates, first)
        if self.unanswered:
            return self._unanswered_verdict(self.unanswered, fates)
        if self.deadlocked:
            return f"deadlock: {one_sentence(fates, self.deadlocked)}{self._losses()}"
        busy = f" of their own ({BUSY})" if self.cannot_say else ""
        return f"{_OUT_OF_TIME} {self.timeout_s:g} s{busy}: {one_sentence(fates)}{self._losses()}"

    def _losses(self) -> str:
        """The reason that a message does not come, and the cure: the likeliest slip with `isend` and `irecv`."""
        if not self.lost:
            return ""
        sites = ", ".join(sorted({f"{call.collective} ({call.site})" for call in self.lost.values()}))
        post = " and ".join(sorted({call.collective for call in self.lost.values()}))
        return f". Nobody waited for {sites}: a message is lost with its handle, so keep what {post} returns and wait()"

    def _report(self, rank: int) -> RankReport:
        if self.mismatch and rank in self.mismatch.calls:
            return RankReport(rank, "waiting", waits_in=in_words(self.mismatch.calls[rank]))
        report = self.ended.get(rank)
        if report is None:
            return self._unfinished(rank)
        somebody_died = any(other.state == "died" for other in self.ended.values())
        if report.state == "raised" and somebody_died and _LOST_PEER.search(report.error) and rank in self.latest:
            stack = "\n".join(report.traceback.splitlines()[1:-1])  # without gloo's words, which vary by accident
            return RankReport(rank, "waiting", stack, in_words(self.latest[rank]))
        return report

    def _unfinished(self, rank: int) -> RankReport:
        position = self.positions.get(rank)
        if position is None:
            return RankReport(rank, "running")
        if position.waiting:
            return RankReport(rank, "waiting", position.stack, in_words(position.waiting.call))
        if position.collective:
            return RankReport(rank, "waiting", position.stack, WaitsIn(position.collective, position.site))
        return RankReport(rank, "running", position.stack)

    @staticmethod
    def _unanswered_verdict(found: Unanswered, fates: dict[int, str]) -> str:
        call = next(iter(found.calls.values()))
        omitted = "calling it"
        if isinstance(call, PointToPointCall):
            omitted = "receiving it" if call.direction == "send" else "sending"
        for rank, made in found.calls.items():
            if fates[rank] == "returned":  # the backend did not wait, but the call is incomplete
                fates[rank] = f"called {in_words(made)}"
        fates |= dict.fromkeys(found.absent, f"returned without {omitted}")
        return one_sentence(fates, fates.keys() - found.absent)


def in_words(call: Call) -> WaitsIn:
    """An announced call, as a report names it."""
    peers = ""
    if isinstance(call, PointToPointCall):
        other = "any rank" if call.peer is None else f"rank {call.peer}"
        peers = f"to {other}" if call.direction == "send" else f"from {other}"
    return WaitsIn(call.collective, call.site, call.sequence, peers)


def contradiction(mismatch: Mismatch) -> str:
    """The contradiction between calls, in one sentence that does not depend on which rank came first."""
    if mismatch.verdict:
        return mismatch.verdict
    entries = {rank: call for rank, call in sorted(mismatch.calls.items()) if isinstance(call, CollectiveCall)}
    if len({entry.collective for entry in entries.values()}) > 1:
        calling = {rank: f"calls {entry.collective} ({entry.site})" for rank, entry in entries.items()}
        return f"the ranks call different collectives: {', '.join(_told_once(calling))}"
    details = {rank: dict(entry.details) for rank, entry in entries.items()}
    names = dict.fromkeys(name for own in details.values() for name in own)
    odd = next(name for name in names if len({own.get(name) for own in details.values()}) > 1)
    collective = next(iter(entries.values())).collective
    having = {rank: f"has {details[rank].get(odd)} ({entry.site})" for rank, entry in entries.items()}
    return f"the ranks call {collective} with different {odd}: {', '.join(_told_once(having))}"
