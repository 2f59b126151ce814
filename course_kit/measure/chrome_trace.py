"""A timeline in Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_kit.measure.timeline import Event


def chrome_trace(events: Iterable[Event]) -> dict[str, Any]:
    """A process for each rank: its thread 0 is the program, the others are what is on the network at the same time.

    A viewer nests the events of one thread: two that overlap in part are drawn wrongly or dropped. So messages under
    way at the same time get threads of their own, and times are whole nanoseconds, lest rounding make two overlap.

    Source: "Trace Event Format", Google; times are in microseconds.
    """
    found, names = [], {}
    for event, thread in _threads(events):
        start_ns, end_ns = round(1e9 * event.start_s), round(1e9 * event.end_s)
        names[event.rank, thread] = "program" if thread == 0 else f"network {thread}"
        found.append(
            {
                "ph": "X",
                "name": event.name,
                "cat": event.kind,
                "pid": event.rank,
                "tid": thread,
                "ts": start_ns / 1e3,
                "dur": (end_ns - start_ns) / 1e3,
            }
        )
    ranks = {rank for rank, _ in names}
    labels = [_label("process_name", rank, 0, f"rank {rank}") for rank in sorted(ranks)]
    labels += [_label("thread_name", rank, thread, name) for (rank, thread), name in sorted(names.items())]
    return {"traceEvents": labels + found, "displayTimeUnit": "ms"}


def _threads(events: Iterable[Event]) -> Iterator[tuple[Event, int]]:
    """Beside each event its thread: 0 unless it is on the network, else the first from 1 on that is free again."""
    free_from: dict[tuple[int, int], float] = {}
    for event in sorted(events, key=lambda event: event.start_s):
        thread = int(event.kind == "send")
        while thread and free_from.get((event.rank, thread), event.start_s) > event.start_s:
            thread += 1
        free_from[event.rank, thread] = event.end_s
        yield event, thread


def _label(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}
