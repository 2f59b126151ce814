"""A link in the α–β model: what a message costs, what a byte costs, and both found from measured times.

A message costs α seconds whatever its size, and β seconds for each byte (Hockney 1994; Thakur, Rabenseifner and Gropp
2005, §3). Every rank has one link, over which it sends and receives at once; adding up is free. So what counts is what
must pass one after the other: a `Path`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from course_kit.units import Bytes, Count, Seconds
from course_lib.predict.setup import not_negative


class Path(NamedTuple):
    """What has to pass one after the other before a collective is finished."""

    messages: Count
    n_bytes: Bytes


@dataclass(frozen=True)
class Link:
    """A connection in the α–β model.

    Attributes:
        alpha: what a message costs, whatever its size (latency).
        seconds_per_byte: β, what each of its bytes costs; its inverse is the bandwidth.

    Raises:
        ValueError: a price is negative.
    """

    alpha: Seconds
    seconds_per_byte: float

    def __post_init__(self) -> None:
        not_negative(alpha=self.alpha, seconds_per_byte=self.seconds_per_byte)

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth, 1/β; infinite if bytes cost nothing."""
        return 1 / self.seconds_per_byte if self.seconds_per_byte else math.inf

    @property
    def balance(self) -> Bytes:
        """α/β: a message of this size pays as much for being a message as for its bytes.

        Raises:
            ValueError: bytes cost nothing on this link, so no message is long enough.
        """
        if not self.seconds_per_byte:
            raise ValueError("this link has β = 0, so there is no size at which bytes cost as much as the message")
        return Bytes(round(self.alpha / self.seconds_per_byte))

    def seconds(self, path: tuple[int, int]) -> Seconds:
        """messages · α + bytes · β, for (messages, bytes).

        Raises:
            ValueError: a negative number of either.
        """
        messages, n_bytes = path
        not_negative(messages=messages, n_bytes=n_bytes)
        return Seconds(messages * float(self.alpha) + n_bytes * self.seconds_per_byte)


def fit_link(samples: Iterable[tuple[int, int, float]]) -> Link:
    """The link that explains measured times best.

    Least squares of the *relative* error, because a microsecond means much for a small message and nothing for a large
    one. Neither α nor β comes out negative: if noise would make one so, it is 0.

    Args:
        samples: (messages, bytes, seconds) of each measurement, from a `Collective`'s path or counted.

    Raises:
        ValueError: a time is not positive, or the samples cannot tell messages from bytes (all of one size, or one).
    """
    rows = [(messages / s, n_bytes / s) if s > 0 else None for messages, n_bytes, s in samples]
    if None in rows:
        raise ValueError("fit_link needs times above 0 s; leave out what the clock could not resolve")
    pairs = [row for row in rows if row]
    mm, mb, bb = (sum(row[i] * row[j] for row in pairs) for i, j in ((0, 0), (0, 1), (1, 1)))
    m, b = (sum(row[i] for row in pairs) for i in (0, 1))
    determinant = mm * bb - mb * mb
    if determinant <= 1e-12 * mm * bb:
        raise ValueError(f"fit_link got {len(pairs)} samples of one size a message; measure at least two sizes")
    alpha, beta = (m * bb - b * mb) / determinant, (mm * b - mb * m) / determinant
    if alpha < 0:
        alpha, beta = 0.0, b / bb
    elif beta < 0:
        alpha, beta = m / mm, 0.0
    return Link(Seconds(alpha), beta)
