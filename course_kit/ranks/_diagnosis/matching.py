"""Comparison of the ranks' calls: the k-th call of every group over its ranks, as the calls arrive.

Pure data, no processes: a `Matcher` takes the calls that ranks are about to make and answers with the first
contradiction. Gloo itself finds few: another dtype of the same size, another shape or another order give wrong
numbers in silence, and a missing call is a "timeout" that names nobody.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Literal, NamedTuple


class CollectiveCall(NamedTuple):
    """A rank is about to call a collective.

    Attributes:
        group: the process group's name.
        members: its ranks.
        sequence: how many collectives of this group the rank called before, in this run.
        collective: the function's name.
        details: (name, value) pairs on which all ranks must agree: shape, dtype, reduce op, root.
        site: the line that calls it.
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
    """A rank is about to send or receive.

    Attributes:
        group: the process group's name.
        direction: "send" or "recv".
        sender: the sending rank; None where a receiver takes from anybody and has not got it yet.
        receiver: the receiving rank.
        tag: only transfers with the same tag match.
        sequence: how many transfers of this direction, between these two with this tag, came before.
        collective: the function's name.
        elements: how many numbers, None for objects.
        dtype: their type, None for objects.
        site: the line that calls it.
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
        calls: rank → the call it made there. Ranks that come to the same place later are added.
        members: the ranks that make a call there.
        verdict: the contradiction in words, unless it is that the calls are of different kinds or details.
    """

    calls: dict[int, Call]
    members: tuple[int, ...]
    verdict: str = ""

    def add(self, rank: int, call: Call) -> None:
        """One more rank makes `call`; it is part of this contradiction if it is the same call of the same group."""
        first = next(iter(self.calls.values()))
        if isinstance(call, CollectiveCall) and isinstance(first, CollectiveCall) and call[:3] == first[:3]:
            self.calls.setdefault(rank, call)


@dataclass
class Unanswered:
    """Calls that wait for ranks which returned without making theirs.

    Attributes:
        calls: rank → the call it made.
        absent: the ranks that did not.
    """

    calls: dict[int, Call]
    absent: set[int]


@dataclass
class _Group:
    members: tuple[int, ...]
    made: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    open: dict[int, dict[int, CollectiveCall]] = field(default_factory=dict)
    names: dict[tuple[object, ...], dict[str, set[str]]] = field(default_factory=dict)


class Matcher:
    """All calls of one run."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._channels: dict[tuple[object, ...], dict[str, deque[PointToPointCall]]] = defaultdict(
            lambda: {"send": deque(), "recv": deque()}
        )
        self._matched: dict[tuple[object, ...], int] = defaultdict(int)
        self._from_anyone: dict[int, int] = defaultdict(int)
        self.lost: dict[tuple[object, ...], PointToPointCall] = {}  # sends whose handles are gone

    def take(self, rank: int, call: Call) -> Mismatch | None:
        """Take note that `rank` is about to make `call`; return a contradiction, or None."""
        if isinstance(call, PointToPointCall):
            return self._take_point_to_point(call)
        group = self._groups.setdefault(call.group, _Group(call.members))
        group.made[rank] = call.sequence + 1
        calls = group.open.setdefault(call.sequence, {})
        first = next(iter(calls.values()), call)
        calls[rank] = call
        if (first.collective, first.details) != (call.collective, call.details):
            return Mismatch(dict(calls), group.members)
        if len(calls) < len(group.members):
            return None
        del group.open[call.sequence]
        return _unfit_parts(group.members, calls) or self._other_order(group, calls)

    def _other_order(self, group: _Group, calls: dict[int, CollectiveCall]) -> Mismatch | None:
        """Same calls in another order: over time, the names that two ranks pair with each other close a cycle.

        A rank that passes `a` where another passes `b` proves nothing: the code of a root and of the others may well
        name them differently. But if elsewhere it passes `b` where the other passes `a`, the sums mix `a` with `b`.
        """
        reference = calls[group.members[0]]
        for rank in group.members[1:]:
            ours, theirs = reference.tensor, calls[rank].tensor
            if not ours or not theirs or ours == theirs:
                continue
            key = (reference.collective, reference.details, rank)
            pairs = group.names.setdefault(key, defaultdict(set))
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
                    f"the ranks make the same calls in another order: rank {group.members[0]} calls "
                    f"{reference.collective} with {ours_name} ({reference.site}) where rank {rank} passes "
                    f"{theirs_name} ({calls[rank].site}), and elsewhere the other way round, so each result mixes them"
                )
                return Mismatch(dict(calls), group.members, verdict)
        return None

    def _take_point_to_point(self, call: PointToPointCall) -> Mismatch | None:
        if call.sender is None:
            self._from_anyone[call.receiver] += 1
            return None
        key = (call.group, call.sender, call.receiver, call.tag)
        channel = self._channels[key]
        channel[call.direction].append(call)
        if not (channel["send"] and channel["recv"]):
            return None
        self._matched[key] += 1  # between two ranks and with one tag, messages arrive in the order of the sends
        send, receive = channel["send"].popleft(), channel["recv"].popleft()
        if (send.elements, send.dtype) == (receive.elements, receive.dtype):
            return None
        verdict = (
            f"send and recv do not fit: rank {send.rank} sends {_amount(send)} to rank {receive.rank} ({send.site}), "
            f"which receives {_amount(receive)} ({receive.site})"
        )
        return Mismatch({send.rank: send, receive.rank: receive}, (send.rank, receive.rank), verdict)

    def received_from_anyone(self, call: PointToPointCall) -> Mismatch | None:
        """Take note that a `recv` without a source has its message: `call` says from whom."""
        self._from_anyone[call.receiver] -= 1
        return self._take_point_to_point(call)

    def lose(self, send: PointToPointCall) -> None:
        """Take note that an `isend`'s handle is gone, and nobody waited: the message may be gone, or have arrived."""
        self.lost[_place(send)] = send

    def lost_for(self, call: Call) -> PointToPointCall | None:
        """The send that this `recv` takes its message from, if that may be lost."""
        return self.lost.get(_place(call)) if isinstance(call, PointToPointCall) and call.direction == "recv" else None

    def waits_for(self, call: Call) -> set[int]:
        """The ranks that have not made their part of `call` yet (empty: it can go on)."""
        if isinstance(call, CollectiveCall):
            group = self._groups.get(call.group)
            return {m for m in call.members if group is None or group.made[m] <= call.sequence}
        if call.sender is None:
            return set()
        if self.lost_for(call):
            return {call.sender}
        key = (call.group, call.sender, call.receiver, call.tag)
        return set() if self._matched[key] > call.sequence else {call.peer} - {None}  # type: ignore[return-value]

    def unanswered(self, returned: set[int]) -> Unanswered | None:
        """A call that can never complete, because a rank that it needs has returned."""
        for group in self._groups.values():
            for calls in group.open.values():
                if absent := returned.intersection(group.members).difference(calls):
                    return Unanswered(dict(calls), absent)
        for channel in self._channels.values():
            for call in (*channel["send"], *channel["recv"]):
                if call.peer in returned and not self._from_anyone[call.receiver]:
                    return Unanswered({call.rank: call}, {call.peer})
        return None

    @property
    def has_open_calls(self) -> bool:
        """Whether some call still waits for a rank."""
        waiting = any(group.open for group in self._groups.values())
        return waiting or any(q["send"] or q["recv"] for q in self._channels.values())


def _place(call: PointToPointCall) -> tuple[object, ...]:
    """The key that a send and the recv of its message have in common."""
    return call.group, call.sender, call.receiver, call.tag, call.sequence


def _unfit_parts(members: tuple[int, ...], calls: dict[int, CollectiveCall]) -> Mismatch | None:
    """In an all-to-all, two ranks of which one sends another amount than the other takes."""
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
