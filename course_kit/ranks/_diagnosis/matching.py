"""Comparison of the ranks' calls: the k-th call of every group over its ranks, as the calls arrive.

Pure data, no processes: a `Matcher` takes the calls that ranks are about to make and answers with the first
contradiction. Gloo itself finds few: another dtype of the same size, another shape or another order give wrong
numbers in silence, and a missing call is a "timeout" that names no rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal, NamedTuple


class CollectiveCall(NamedTuple):
    """A collective that a rank is about to call.

    Attributes:
        group: the process group's name.
        members: the group's ranks.
        sequence: number of collectives of this group that the rank called before, in this run.
        collective: the function's name.
        details: (name, value) pairs on which all ranks must agree: shape, dtype, reduce op, root.
        site: the line of the call.
        tensor: all names of the tensor in the reader's code, sorted; empty if there is none.
        parts: for an all-to-all, the amounts (sent to, received from) each member.
    """

    group: str
    members: tuple[int, ...]
    sequence: int
    collective: str
    details: tuple[tuple[str, object], ...]
    site: str
    tensor: tuple[str, ...] = ()
    parts: tuple[tuple[int, ...], tuple[int, ...]] | None = None


class PointToPointCall(NamedTuple):
    """A send or receive that a rank is about to call.

    Attributes:
        group: the process group's name.
        direction: "send" or "recv".
        sender: the sending rank; None where a receiver takes a message from any rank and has not got one yet.
        receiver: the receiving rank.
        tag: only transfers with the same tag match.
        sequence: number of transfers of this direction, between these two with this tag, that came before.
        collective: the function's name.
        elements: number of elements, None for objects.
        dtype: the elements' type, None for objects.
        site: the line of the call.
        backend: the backend that moves the tensor.
    """

    group: str
    direction: Literal["send", "recv"]
    sender: int | None
    receiver: int
    tag: int
    sequence: int
    collective: str
    elements: int | None
    dtype: str | None
    site: str
    backend: str = "gloo"

    @property
    def rank(self) -> int:
        """The rank that makes this call."""
        return self.receiver if self.direction == "recv" or self.sender is None else self.sender

    @property
    def peer(self) -> int | None:
        """The rank at the other end."""
        return self.sender if self.direction == "recv" else self.receiver


Call = CollectiveCall | PointToPointCall


@dataclass(frozen=True)
class Waiting:
    """The call that a thread is in: `ticket` grows with every call, so two equal ones mean that nothing moved."""

    call: Call
    ticket: int


@dataclass
class Mismatch:
    """Calls that contradict each other.

    Attributes:
        calls: rank → its call at the place of the contradiction; ranks that come there later add theirs.
        members: the ranks that make a call there.
        verdict: the contradiction in words; "" where the calls differ in function or details.
    """

    calls: Mapping[int, Call]
    members: tuple[int, ...]
    verdict: str = ""


@dataclass
class Unanswered:
    """Calls that wait for ranks which returned without making theirs.

    Attributes:
        calls: rank → the call it made.
        absent: the ranks that made none.
    """

    calls: dict[int, Call]
    absent: set[int]


class Matcher:
    """The open calls of one run, which still wait for a rank, and the tensors' names in the completed ones."""

    def __init__(self) -> None:
        self._collectives: dict[tuple[object, ...], dict[int, CollectiveCall]] = {}
        self._transfers: dict[tuple[object, ...], PointToPointCall] = {}
        self._names: dict[tuple[object, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._from_anyone: dict[int, int] = defaultdict(int)
        self.lost: dict[tuple[object, ...], PointToPointCall] = {}  # posted transfers whose handles are gone

    def take(self, rank: int, call: Call) -> Mismatch | None:
        """Take note that `rank` is about to make `call`; return a contradiction, or None."""
        if isinstance(call, PointToPointCall):
            return self._take_point_to_point(call)
        calls = self._collectives.setdefault(_place(call), {})
        first = next(iter(calls.values()), call)
        calls[rank] = call
        if (first.collective, first.details) != (call.collective, call.details):
            return Mismatch(calls, call.members)
        if len(calls) < len(call.members):
            return None
        del self._collectives[_place(call)]
        return _unfit_parts(call.members, calls) or self._other_order(call.members, calls)

    def _other_order(self, members: tuple[int, ...], calls: dict[int, CollectiveCall]) -> Mismatch | None:
        """Find the same calls in another order: the names that two ranks pair over time close a cycle.

        A rank that passes `a` where another passes `b` proves nothing: the code of a root and of the others may well
        use different names. But if elsewhere the rank passes `b` and the other `a`, the sums mix `a` with `b`.
        """
        reference = calls[members[0]]
        for rank in members[1:]:
            ours, theirs = reference.tensor, calls[rank].tensor
            if not ours or not theirs or ours == theirs:
                continue
            pairs = self._names[reference.group, reference.collective, reference.details, rank]
            ours_name, theirs_name = "/".join(ours), "/".join(theirs)
            if theirs_name in pairs[ours_name]:
                continue
            pairs[ours_name].add(theirs_name)
            try:
                if theirs_name in pairs:  # else nothing leads back
                    TopologicalSorter(pairs).prepare()
            except CycleError:
                shared = set(ours) & set(theirs)
                ours_name, theirs_name = (" = ".join(n for n in names if n not in shared) for names in (ours, theirs))
                verdict = (
                    f"the ranks make the same calls in another order: rank {members[0]} calls "
                    f"{reference.collective} with {ours_name} ({reference.site}) where rank {rank} passes "
                    f"{theirs_name} ({calls[rank].site}), and elsewhere the other way round, so each result mixes them"
                )
                return Mismatch(calls, members, verdict)
        return None

    def _take_point_to_point(self, call: PointToPointCall) -> Mismatch | None:
        if call.sender is None:
            self._from_anyone[call.receiver] += 1
            return None
        other = self._transfers.pop(_place(call), None)
        if other is None:
            self._transfers[_place(call)] = call
            return None
        send, receive = (call, other) if call.direction == "send" else (other, call)
        if (send.elements, send.dtype) == (receive.elements, receive.dtype):
            return None
        verdict = (
            f"send and recv do not fit: rank {send.rank} sends {_amount(send)} to rank {receive.rank} ({send.site}), "
            f"which receives {_amount(receive)} ({receive.site})"
        )
        return Mismatch({send.rank: send, receive.rank: receive}, (send.rank, receive.rank), verdict)

    def received_from_anyone(self, call: PointToPointCall) -> Mismatch | None:
        """Take note that a `recv` without a source has its message: `call` names the sender."""
        self._from_anyone[call.receiver] -= 1
        return self._take_point_to_point(call)

    def lose(self, posted: PointToPointCall) -> None:
        """Take note that a handle is gone without a wait: the message may be gone, or have arrived."""
        self.lost[posted.direction, *_place(posted)] = posted

    def lost_for(self, call: Call) -> PointToPointCall | None:
        """The other end of this transfer, if its handle is gone: the message may be lost."""
        if not isinstance(call, PointToPointCall):
            return None
        return self.lost.get(("recv" if call.direction == "send" else "send", *_place(call)))

    def waits_for(self, call: Call) -> set[int]:
        """The ranks that have not made their part of `call` yet (empty: it can go on)."""
        if isinstance(call, CollectiveCall):
            return set(call.members).difference(self._collectives.get(_place(call), call.members))
        if call.peer is None:
            return set()
        return {call.peer} if self.lost_for(call) or _place(call) in self._transfers else set()

    def unanswered(self, returned: set[int]) -> Unanswered | None:
        """A call that can never complete, because a rank that it needs has returned."""
        for calls in self._collectives.values():
            if absent := returned.intersection(next(iter(calls.values())).members).difference(calls):
                return Unanswered(dict(calls), absent)
        for call in self._transfers.values():
            if call.peer in returned and not self._from_anyone[call.receiver]:
                return Unanswered({call.rank: call}, {call.peer})
        return None

    @property
    def has_open_calls(self) -> bool:
        """Whether some call still waits for a rank, or a receive that nobody waited for may take a later message."""
        lost_receive = any(posted.direction == "recv" for posted in self.lost.values())
        return bool(self._collectives or self._transfers) or lost_receive


def _place(call: Call) -> tuple[object, ...]:
    """The key that calls which belong together share; messages with one tag arrive in the order of their sends."""
    if isinstance(call, CollectiveCall):
        return call.group, call.members, call.sequence
    return call.group, call.sender, call.receiver, call.tag, call.sequence


def _unfit_parts(members: tuple[int, ...], calls: dict[int, CollectiveCall]) -> Mismatch | None:
    """Two ranks of an all-to-all of which one sends another amount than the other takes; None if there are none."""
    for i, sender in enumerate(members):
        for j, receiver in enumerate(members):
            send, take = calls[sender], calls[receiver]
            if send.parts and take.parts and send.parts[0][j] != take.parts[1][i]:
                verdict = (
                    f"the parts of {send.collective} do not fit: rank {sender} sends {send.parts[0][j]} to rank "
                    f"{receiver} ({send.site}), which expects {take.parts[1][i]} ({take.site})"
                )
                return Mismatch({sender: send, receiver: take}, (sender, receiver), verdict)
    return None


def _amount(transfer: PointToPointCall) -> str:
    if transfer.elements is None:
        return "objects"
    return f"{transfer.elements:,} {transfer.dtype} value{'' if transfer.elements == 1 else 's'}"
