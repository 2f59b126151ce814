"""Times of each rank: computing, waiting for another rank, or sending while it computes.

    def on_each_rank():
        with measure.timeline() as record:
            with record.span("forward"):
                loss = replica(inputs, targets)
            with record.span("backward"):
                loss.backward()
            replica.synchronize()
        return record

    record = ranks.run(on_each_rank)[0]    # holds the events of all ranks

Communication is noticed without a word, even one that C++ code starts.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist

from course_kit.communications import Communication, backend_of, unwatch_waits, watch_waits
from course_kit.measure.traffic import CommunicationMode, group_of
from course_kit.units import Seconds

Kind = Literal["compute", "wait", "send"]
_clock = time.perf_counter
_PINGS = 8


@dataclass(frozen=True)
class Event:
    """A stretch of time of one rank.

    "compute" and "wait" (blocked in a communication) are of the rank's own thread, one after the other; "send" is a
    communication under way, from its start to its completion, beside the others.
    """

    rank: int
    kind: Kind
    name: str  #: the name of the computed span, or of the communication
    start_s: float  #: seconds since the first event of all ranks
    end_s: float


@dataclass
class RankTimeline:
    """The events of all ranks, on one clock; there are none until the `with` block of `timeline` has ended."""

    events: list[Event] = field(default_factory=list)
    _recorder: _Recorder | None = None

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Name the computation of the block (inside another span, the inner name counts).

        Raises:
            ValueError: the recording is over.
        """
        if self._recorder is None:
            raise ValueError("a span belongs inside the `with measure.timeline()` block, which has ended here")
        before = self._recorder.enter("compute", name)
        try:
            yield
        finally:
            if self._recorder is not None:
                self._recorder.enter(*before)

    @property
    def world_size(self) -> int:
        """The number of recorded ranks."""
        return len({event.rank for event in self.events})

    def of(self, rank: int, kind: Kind) -> list[Event]:
        """The events of one rank and kind, by their start."""
        chosen = [event for event in self.events if event.rank == rank and event.kind == kind]
        return sorted(chosen, key=lambda event: event.start_s)

    def seconds(self, rank: int, kind: Kind) -> Seconds:
        """The time in which the rank computed, waited or had a communication under way; never counted twice."""
        return Seconds(_covered_s(self.of(rank, kind)))

    def hidden(self, rank: int) -> Seconds:
        """The time in which a communication was under way and the rank did not wait: hidden behind computation."""
        sends, waits = self.of(rank, "send"), self.of(rank, "wait")
        return Seconds(max(0.0, _covered_s(sends + waits) - _covered_s(waits)))

    def save(self, path: str | Path) -> None:
        """Write the events to a file that Perfetto (ui.perfetto.dev) and chrome://tracing open."""
        Path(path).write_text(json.dumps(chrome_trace(self.events)), encoding="utf-8")


@contextmanager
def timeline(
    group: dist.ProcessGroup | None = None, axes: Mapping[str, dist.ProcessGroup] | None = None
) -> Iterator[RankTimeline]:
    """Record this rank's times inside the block. All ranks of the group must record.

    Where `axes` has an axis of the mesh for a communication's group, its name says so: "all_reduce along tensor".

    Nothing is sent before the end of the block. There the ranks compare their clocks (8 round trips with the group's
    first rank each, a few milliseconds) and exchange their events, so that every rank has those of all. A difference
    of two clocks that is smaller than the round trip can prove counts as none: on one machine all ranks share a clock.

    Waiting is seen where Python waits (`work.wait()`, any blocking call, the first use of a functional collective's
    tensor); the bar of a communication without a future ends there, too. DistributedDataParallel waits in C++, so its
    waits look like computing. The view is the processor's: a GPU kernel that was only started is over at once.
    Watching costs a few microseconds for every operation of PyTorch.

    Yields:
        The record; name a computation with its `span`.
    """
    recorder = _Recorder(dist.get_rank(group), axes or {})
    record = RankTimeline(_recorder=recorder)
    watch_waits(recorder.waiting)
    try:
        with recorder:
            yield record
    finally:
        unwatch_waits(recorder.waiting)
        recorder.enter("compute", "compute")
        record._recorder = None
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, _shifted(recorder.events, clock_offset_s(group)), group=group)
    events = [event for events in everyones for event in events]
    origin = min((event.start_s for event in events), default=0.0)
    record.events = _shifted(events, -origin)


class _Recorder(CommunicationMode):
    """Writes down the calling thread's doings, always exactly one, so events follow each other; and every
    communication, even one that C++ code starts."""

    def __init__(self, rank: int, axes: Mapping[str, dist.ProcessGroup]) -> None:
        super().__init__()
        self.rank = rank
        self._axes = {group.group_name: axis for axis, group in axes.items()}
        self.events: list[Event] = []
        self._doing: tuple[Kind, str] = ("compute", "compute")
        self._since = _clock()
        self._thread = threading.get_ident()
        self._open: list[_UnderWay] = []

    def enter(self, kind: Kind, name: str) -> tuple[Kind, str]:
        """Let this thread do something else from now on; return its doing until now."""
        before, now = self._doing, _clock()
        self.events.append(Event(self.rank, *before, self._since, now))
        self._doing = kind, name
        self._since = now
        return before

    @contextmanager
    def waiting(self, handle: dist.Work | torch.Tensor) -> Iterator[None]:
        """Record that the block waits for a communication: for its handle, or for its tensor."""
        if threading.get_ident() != self._thread:
            yield
            return
        before = self.enter("wait", next((each.name for each in self._open if each.is_of(handle)), "communication"))
        try:
            yield
        finally:
            self.enter(*before)
            self._close(handle)

    def on_communication(self, found: Communication, given: dict[str, Any], call: Callable[[], Any]) -> Any:
        """Run a communication and keep its handle; functional collectives have none, and their tensor is waited for."""
        if found.kind == "wait":
            with self.waiting(given[found.holds]):
                return call()
        axis = self._axes.get(group_of(given).group_name) if self._axes else None
        name = f"{found.name} along {axis}" if axis else found.name
        out = call()
        for handle in out if isinstance(out, tuple | list) else [out]:
            if isinstance(handle, torch.ScriptObject):
                self._started(name, dist.Work.unbox(handle))  # type: ignore[attr-defined]
            elif isinstance(handle, torch.Tensor) and "process_group" not in given:
                self._started(name, handle)
        return out

    def _started(self, name: str, handle: dist.Work | torch.Tensor) -> None:
        """Record that a communication is under way. Its end is told by its future, or without one by the wait."""
        start, future = _clock(), _future(handle)
        self._open.append(_UnderWay(name, handle, start, draws_itself=future is not None))
        if future is not None:
            future.add_done_callback(lambda _: self._sent(name, start))

    def _sent(self, name: str, start: float) -> None:
        if not name.startswith("recv"):
            self.events.append(Event(self.rank, "send", name, start, _clock()))

    def _close(self, handle: dist.Work | torch.Tensor) -> None:
        """Forget a communication that was waited for."""
        for each in [each for each in self._open if each.is_of(handle)]:
            self._open.remove(each)
            if not each.draws_itself:
                self._sent(each.name, each.start_s)


class _UnderWay(NamedTuple):
    """A communication that has not been waited for yet."""

    name: str
    handle: dist.Work | torch.Tensor
    start_s: float
    draws_itself: bool

    def is_of(self, handle: dist.Work | torch.Tensor) -> bool:
        """Whether the handle is this communication's; a tensor may have been wrapped meanwhile, its storage stays."""
        if isinstance(handle, torch.Tensor) and isinstance(self.handle, torch.Tensor):
            return handle.untyped_storage()._cdata == self.handle.untyped_storage()._cdata
        return handle is self.handle


def _future(handle: dist.Work | torch.Tensor) -> torch.futures.Future[Any] | None:
    """The future that is done with the communication; gloo's messages and reduce-scatter have none."""
    try:
        return None if isinstance(handle, torch.Tensor) else handle.get_future()
    except RuntimeError:
        return None


def clock_offset_s(group: dist.ProcessGroup | None = None) -> float:
    """The seconds to add to this rank's clock for that of the group's first rank. All ranks must call.

    Of 8 round trips the fastest counts, and the answer is taken to have been given in its middle (Cristian 1989), so
    the error is at most half a round trip; an offset below that is 0. The first rank sends 9 messages of 8 bytes to
    each other rank, which sends 8.
    """
    device = "cpu" if backend_of(torch.device("cpu"), group) else "cuda"  # NCCL moves no tensor of a CPU
    members = dist.get_process_group_ranks(group or dist.group.WORLD)
    value = torch.zeros((), dtype=torch.float64, device=device)
    if dist.get_rank(group) > 0:
        for _ in range(_PINGS):
            dist.recv(value, members[0], group)
            dist.send(value.fill_(_clock()), members[0], group)
        dist.recv(value, members[0], group)
        return value.item()
    for member in members[1:]:
        trip_s, offset_s = min(_ping(value, member, group) for _ in range(_PINGS))
        dist.send(value.fill_(0.0 if abs(offset_s) <= trip_s / 2 else offset_s), member, group)
    return 0.0


def _ping(value: torch.Tensor, member: int, group: dist.ProcessGroup | None) -> tuple[float, float]:
    """(seconds of the round trip, our clock minus the member's)."""
    start = _clock()
    dist.send(value, member, group)
    dist.recv(value, member, group)
    end = _clock()
    return end - start, (start + end) / 2 - value.item()


def _shifted(events: list[Event], by_s: float) -> list[Event]:
    return [replace(event, start_s=event.start_s + by_s, end_s=event.end_s + by_s) for event in events]


def _covered_s(events: list[Event]) -> float:
    """The seconds in which at least one of the events is going on."""
    total_s, until_s = 0.0, float("-inf")
    for event in sorted(events, key=lambda event: event.start_s):
        total_s += max(0.0, event.end_s - max(event.start_s, until_s))
        until_s = max(until_s, event.end_s)
    return total_s


def chrome_trace(events: Iterable[Event]) -> dict[str, Any]:
    """The events in Chrome's trace format: a process for each rank, thread 0 the program, the others the network.

    A viewer nests the events of one thread: two that overlap in part are drawn wrongly or dropped. So messages under
    way at the same time get threads of their own, and times are whole nanoseconds, lest rounding make two overlap.

    Source: "Trace Event Format", Google; times are in microseconds.
    """
    found, names = [], {}
    for event, thread in _threads(events):
        start_ns, end_ns = round(1e9 * event.start_s), round(1e9 * event.end_s)
        names["process_name", event.rank, 0] = f"rank {event.rank}"
        names["thread_name", event.rank, thread] = "program" if thread == 0 else f"network {thread}"
        times = {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
        found.append({"ph": "X", "name": event.name, "cat": event.kind, "pid": event.rank, "tid": thread, **times})
    labels = [
        {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}
        for (kind, rank, thread), name in sorted(names.items())
    ]
    return {"traceEvents": labels + found, "displayTimeUnit": "ms"}


def _threads(events: Iterable[Event]) -> Iterator[tuple[Event, int]]:
    """Each event with its thread: 0 unless it is on the network, else the first from 1 on that is free again."""
    free_from: dict[tuple[int, int], float] = {}
    for event in sorted(events, key=lambda event: event.start_s):
        thread = int(event.kind == "send")
        while thread and free_from.get((event.rank, thread), event.start_s) > event.start_s:
            thread += 1
        free_from[event.rank, thread] = event.end_s
        yield event, thread
