"""The two accounts of this course: bytes that a device *holds* and bytes that a rank *sends*.

`predict` computes them from formulas and `measure` observes them. Both return these same types, so `compare` can put
them side by side without an adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from course_kit.units import Bytes

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries")
"""Everything that is alive in a training step belongs to exactly one of these, in this order."""

_NONE = Bytes(0)


@dataclass(frozen=True)
class MemoryAccount(Mapping[str, Bytes]):
    """Bytes held at one moment, by category. Reads like a dict; `account["gradients"]` is `account.gradients`.

    Attributes:
        parameters: the weights, as the forward pass uses them.
        gradients: the `.grad` of parameters.
        optimizer: what the optimizer keeps between steps (momentum, variance, an fp32 copy of the weights).
        activations: what the forward pass saved for the backward pass.
        temporaries: everything else: results on their way from one operation to the next, inputs, buffers.
    """

    parameters: Bytes = _NONE
    gradients: Bytes = _NONE
    optimizer: Bytes = _NONE
    activations: Bytes = _NONE
    temporaries: Bytes = _NONE

    def __post_init__(self) -> None:
        for category in CATEGORIES:
            object.__setattr__(self, category, Bytes(getattr(self, category)))

    @property
    def total(self) -> Bytes:
        """The sum over all categories."""
        return sum(self.values(), Bytes(0))

    def __getitem__(self, category: str) -> Bytes:
        if category not in CATEGORIES:
            raise KeyError(category)
        return getattr(self, category)

    def __iter__(self) -> Iterator[str]:
        return iter(CATEGORIES)

    def __len__(self) -> int:
        return len(CATEGORIES)

    def __add__(self, other: MemoryAccount) -> MemoryAccount:
        return MemoryAccount(**{c: self[c] + other[c] for c in CATEGORIES})


class Attributed(Bytes):
    """Bytes that a formula attributed to a call and nobody counted. A table in which they stand says so."""

    def __radd__(self, other: object) -> Attributed:  # Bytes + Attributed is no count either
        return self + other

    def _same(self, value: object, other: object) -> Attributed:
        return super()._same(value, Attributed(other) if isinstance(other, Bytes) else other)


@dataclass(frozen=True)
class TrafficAccount:
    """What one rank sent: seen by the operating system, and by operation name as in `torch.distributed`.

    Attributes:
        observed_bytes: bytes that the operating system counted leaving this rank's sockets (payload and the backend's
            own headers), or None where it does not count.
        attributed_bytes: operation → payload bytes. For send and isend that is the tensor's size, exactly. For a
            library collective it is `Attributed`: the formula's share, 2(p-1)/p of the tensor for an all-reduce, say.
        messages: operation → number of messages (for a library collective: of calls).
        bytes_to: destination → payload bytes of send and isend. Library collectives do not say whom they send to, so
            they are missing here: this is who sends what to whom for algorithms built from messages.
        messages_to: destination → number of sends, as in `bytes_to`.
        observed_by_connection: both ends of a connection, this rank's first → bytes that the operating system counted
            on it, 0 included. With the accounts of all ranks it tells who sent how much to whom, whatever sent it.
    """

    observed_bytes: Bytes | None = None
    attributed_bytes: Mapping[str, Bytes] = field(default_factory=dict)
    messages: Mapping[str, int] = field(default_factory=dict)
    bytes_to: Mapping[int, Bytes] = field(default_factory=dict)
    messages_to: Mapping[int, int] = field(default_factory=dict)
    observed_by_connection: Mapping[tuple[str, str], Bytes] = field(default_factory=dict, repr=False)

    @property
    def sent_bytes(self) -> Bytes:
        """The best evidence that there is: `observed_bytes` where the system counts (Linux), else `total_bytes`."""
        return self.total_bytes if self.observed_bytes is None else self.observed_bytes

    @property
    def total_bytes(self) -> Bytes:
        """Payload bytes over all operations: exact where all are sends, `Attributed` with a library collective."""
        return sum(self.attributed_bytes.values(), Bytes(0))

    @property
    def total_messages(self) -> int:
        """Messages over all operations."""
        return sum(self.messages.values())
