"""Bytes that were held, with the lines that made them: what a check of memory says when there are too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Self

from course_kit.measure.memory import MemoryRecord
from course_kit.units import Bytes

MOST = 3
"""Lines that a message names at most; one with less than a tenth of the bytes is not worth it."""

INDENT = " " * 12
"""Under the first word behind "came"."""


class Held(Bytes):
    """Bytes with the lines that made them; a sum has those of both, a difference those of the first.

        Held(4096, {"line 7 of add: kept = x.clone()": Bytes(4096)})

    Attributes:
        lines: line → bytes, the most first.
    """

    lines: Mapping[str, Bytes]

    def __new__(cls, value: object = 0, lines: Mapping[str, Bytes] | None = None) -> Self:
        self = super().__new__(cls, value)
        self.lines = lines or {}
        return self

    @property
    def words(self) -> str:
        """The number, and below it the lines that made most of it."""
        most = [f"{INDENT}{n} by {line}" for line, n in [*self.lines.items()][:MOST] if 10 * n >= self > 0]
        return "\n".join([f"{self}, of which" if most else f"{self}", *most])

    def __add__(self, other: object) -> Self:
        total = super().__add__(other)
        if isinstance(other, Held) and isinstance(total, Held):
            both = Counter(self.lines)
            both.update(other.lines)
            total.lines = {line: Bytes(n) for line, n in both.most_common()}
        return total

    __radd__ = __add__

    def _same(self, value: object, other: object) -> Self:
        plain = super()._same(value, type(self)(other) if isinstance(other, Bytes) else other)
        return plain if plain is NotImplemented else type(self)(plain, self.lines)


def held(record: MemoryRecord, at: str = "peak") -> Held:
    """What a record with `lines=True` holds beyond what was there before it.

    Args:
        record: of `measure.memory`, open or closed.
        at: "peak" or "now".
    """
    timeline = record.timeline  # of an open record each is drawn up anew
    account = timeline.account(timeline.peak_row if at == "peak" else -1)
    return Held(account.total - timeline.account(0).total, record.by_line(at))
