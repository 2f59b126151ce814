"""From what the ranks said to a report: which state each is in, and the one sentence that sums it up.

Pure data, no processes. Lesson 00 uses this module without opening it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from course_kit.ranks._diagnosis.failures import RankFailure, RankReport, WaitsIn, name_ranks, one_sentence
from course_kit.ranks._diagnosis.matching import Call, Entry, Mismatch, Transfer, Unanswered
from course_kit.ranks._processes.wire import Position

_LOST_PEER = re.compile(r"Connection (closed|reset)|Broken pipe|Socket closed|Read error")


@dataclass
class Evidence:
    """What is known of one call when it is over.

    Attributes:
        world_size: the number of ranks.
        timeout_s: the call's time limit.
        ended: rank → what became of it, for those that returned, raised or died.
        latest: rank → the communication that it announced last.
        positions: rank → where it was at the end, for the others.
        signal_stacks: rank → its stack as the interpreter's fault handler wrote it, for ranks that could not answer.
        mismatch: calls that contradict each other.
        unanswered: calls that need a rank which returned.
        deadlocked: ranks that wait for each other.
        lost: rank → the send that it waits for, where nobody has waited for that one and its handle is gone.
    """

    world_size: int
    timeout_s: float
    ended: dict[int, RankReport] = field(default_factory=dict)
    latest: dict[int, Call] = field(default_factory=dict)
    positions: dict[int, Position] = field(default_factory=dict)
    signal_stacks: dict[int, str] = field(default_factory=dict)
    mismatch: Mismatch | None = None
    unanswered: Unanswered | None = None
    deadlocked: set[int] = field(default_factory=set)
    lost: dict[int, Transfer] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether all ranks returned and nothing speaks against their results."""
        returned = [report for report in self.ended.values() if report.state == "returned"]
        return len(returned) == self.world_size and not self.mismatch and not self.unanswered

    def failure(self) -> RankFailure:
        """The report. The first cause comes first: a wrong call explains a crash, a crash explains a hang."""
        reports = [self._report(rank) for rank in range(self.world_size)]
        if self.mismatch:
            return RankFailure(contradiction(self.mismatch), reports)
        for state in ("died", "raised"):
            if first := [report.rank for report in reports if report.state == state]:
                return RankFailure(one_sentence(reports, first), reports)
        if self.unanswered:
            return RankFailure(self._unanswered_verdict(self.unanswered, reports), reports)
        if self.deadlocked:
            return RankFailure(f"deadlock: {one_sentence(reports, self.deadlocked)}{self._losses()}", reports)
        return RankFailure(f"not done after {self.timeout_s:g} s: {one_sentence(reports)}{self._losses()}", reports)

    def _losses(self) -> str:
        """Why a message does not come although it was sent, and what to do: the likeliest slip with `isend`."""
        if not self.lost:
            return ""
        sites = ", ".join(sorted({f"{send.collective} ({send.site})" for send in self.lost.values()}))
        return f". Nobody waited for {sites}: a message is lost with its handle, so keep what isend returns and wait()"

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
            return RankReport(rank, "running", traceback=self.signal_stacks.get(rank, ""))
        if position.waiting:
            return RankReport(rank, "waiting", position.stack, in_words(position.waiting.call))
        if position.collective:
            return RankReport(rank, "waiting", position.stack, WaitsIn(position.collective, position.site))
        return RankReport(rank, "running", position.stack)

    @staticmethod
    def _unanswered_verdict(found: Unanswered, reports: list[RankReport]) -> str:
        call = next(iter(found.calls.values()))
        omitted = "calling it"
        if isinstance(call, Transfer):
            omitted = "receiving it" if call.direction == "send" else "sending"
        fates = dict.fromkeys(found.absent, f"returned without {omitted}")
        for rank, made in found.calls.items():
            if reports[rank].state == "returned":  # the backend did not wait, but the call is incomplete
                fates[rank] = f"called {in_words(made)}"
        return one_sentence(reports, set(range(len(reports))) - found.absent, fates)


def in_words(call: Call) -> WaitsIn:
    """An announced call, as a report names it."""
    peers = ""
    if isinstance(call, Transfer):
        other = "any rank" if call.peer is None else f"rank {call.peer}"
        peers = f"to {other}" if call.direction == "send" else f"from {other}"
    return WaitsIn(call.collective, call.site, call.sequence, peers)


def contradiction(mismatch: Mismatch) -> str:
    """What is wrong with the calls, in one sentence that does not depend on which rank came first."""
    calls = dict(sorted(mismatch.calls.items()))
    entries = {rank: call for rank, call in calls.items() if isinstance(call, Entry)}
    transfers = [call for call in calls.values() if isinstance(call, Transfer)]
    if transfers:
        return _unfit_transfer(*sorted(transfers, key=lambda call: call.direction, reverse=True))
    if mismatch.unfit is not None:
        return _unfit_parts(entries, *mismatch.unfit)
    if mismatch.swapped_with is not None:
        first = mismatch.members[0]
        return _other_order(first, entries[first], mismatch.swapped_with, entries[mismatch.swapped_with])
    if len({entry.collective for entry in entries.values()}) > 1:
        return f"the ranks call different collectives: {_who(entries, lambda entry: entry.collective, 'call')}"
    details = {rank: dict(entry.details) for rank, entry in entries.items()}
    names = dict.fromkeys(name for own in details.values() for name in own)
    odd = next(name for name in names if len({own.get(name) for own in details.values()}) > 1)
    collective = next(iter(entries.values())).collective
    return f"the ranks call {collective} with different {odd}: {_who(entries, lambda e: str(dict(e.details).get(odd)))}"


def _who(entries: dict[int, Entry], what: Callable[[Entry], str], verb: str = "have") -> str:
    """`rank 0 has (4,) (cell line 3), ranks 1 and 2 have (5,) (cell line 3)`."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, entry in entries.items():
        groups.setdefault((what(entry), entry.site), []).append(rank)
    third_person = {"have": "has", "call": "calls"}[verb]
    return ", ".join(
        f"{name_ranks(ranks)} {third_person if len(ranks) == 1 else verb} {value} ({site})"
        for (value, site), ranks in groups.items()
    )


def _other_order(first: int, ours: Entry, second: int, theirs: Entry) -> str:
    shared = set(ours.tensor) & set(theirs.tensor)
    our_name, their_name = (" = ".join(n for n in entry.tensor if n not in shared) for entry in (ours, theirs))
    return (
        f"the ranks make the same calls in another order: rank {first} calls {ours.collective} with {our_name} "
        f"({ours.site}) where rank {second} passes {their_name} ({theirs.site}), and elsewhere the other way round, "
        f"so each result mixes them"
    )


def _unfit_parts(entries: dict[int, Entry], sender: int, receiver: int) -> str:
    send, take = entries[sender], entries[receiver]
    assert send.parts is not None and take.parts is not None
    return (
        f"the parts of {send.collective} do not fit: rank {sender} sends {send.parts[0][send.members.index(receiver)]} "
        f"to rank {receiver} ({send.site}), which expects {take.parts[1][take.members.index(sender)]} ({take.site})"
    )


def _unfit_transfer(send: Transfer, receive: Transfer) -> str:
    return (
        f"send and recv do not fit: rank {send.rank} sends {_amount(send)} to rank {receive.rank} ({send.site}), "
        f"which receives {_amount(receive)} ({receive.site})"
    )


def _amount(transfer: Transfer) -> str:
    if transfer.elements is None:
        return "objects"
    return f"{transfer.elements:,} {transfer.dtype} value{'' if transfer.elements == 1 else 's'}"
