"""The two accounts of this course: bytes that a device *holds* and bytes that a rank *sends*.

`predict` computes them from formulas and `measure` observes them. Both return these same types, so `compare` can put
them side by side without an adapter.

Lesson 00 opens this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from course_lib.units import Bytes

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


@dataclass(frozen=True)
class TrafficAccount:
    """What one rank sent, by operation name as in `torch.distributed` ("send", "all_reduce", …).

    Attributes:
        sent_bytes: operation → payload bytes that left this rank. For send and isend it is exact. For a library
            collective it is the formula's share (2(p-1)/p of the tensor for an all-reduce, say); `wire_bytes` is
            what the operating system counted.
        messages: operation → number of messages (for a library collective: of calls).
        wire_bytes: bytes that the operating system counted leaving this rank's sockets (payload and the backend's
            own headers), or None where it does not count.
        bytes_to: destination → payload bytes of send and isend. Library collectives do not say whom they send to, so
            they are missing here: this is who sends what to whom for algorithms built from messages.
        messages_to: destination → number of sends, as in `bytes_to`.
    """

    sent_bytes: Mapping[str, Bytes] = field(default_factory=dict)
    messages: Mapping[str, int] = field(default_factory=dict)
    wire_bytes: Bytes | None = None
    bytes_to: Mapping[int, Bytes] = field(default_factory=dict)
    messages_to: Mapping[int, int] = field(default_factory=dict)

    @property
    def total_bytes(self) -> Bytes:
        """Payload bytes over all operations."""
        return sum(self.sent_bytes.values(), Bytes(0))

    @property
    def observed_bytes(self) -> Bytes:
        """`wire_bytes` where the operating system counts (Linux), else `total_bytes`.

        For a library collective the latter is a formula: where nobody counts, comparing the two proves nothing.
        """
        return self.total_bytes if self.wire_bytes is None else self.wire_bytes

    @property
    def total_messages(self) -> int:
        """Messages over all operations."""
        return sum(self.messages.values())
