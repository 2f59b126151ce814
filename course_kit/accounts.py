"""The two accounts of this course: bytes that a device *holds* and bytes that a rank *sends*.

`predict` computes them from formulas and `measure` observes them. Both return these same types, so `compare` can put
them side by side without an adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from course_kit.units import Bytes

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries")
"""The categories of memory. Each tensor that is alive in a training step belongs to exactly one, in this order."""


@dataclass(frozen=True)
class MemoryAccount(Mapping[str, Bytes]):
    """Bytes held at one moment, by category, which read like a dict; `account["gradients"]` is `account.gradients`."""

    parameters: Bytes = Bytes(0)  #: the weights, as the forward pass uses them
    gradients: Bytes = Bytes(0)  #: the `.grad` of parameters
    optimizer: Bytes = Bytes(0)  #: the tensors kept between steps (momentum, variance, an fp32 copy of the weights)
    activations: Bytes = Bytes(0)  #: the tensors that the forward pass saved for the backward pass
    temporaries: Bytes = Bytes(0)  #: all others, such as results on their way between operations, inputs, buffers

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


class ModelledBytes(Bytes):
    """Bytes of a call from a formula, not from a count; a table that holds them says so."""

    def __radd__(self, other: object) -> ModelledBytes:  # Bytes + ModelledBytes is no count either
        return self + other


@dataclass(frozen=True)
class TrafficAccount:
    """Bytes and messages that one rank sent: as the operating system saw them, and by operation of `torch.distributed`.

    Attributes:
        observed_bytes: bytes that the operating system counted leaving this rank's sockets (payload and the backend's
            own headers), or None where it does not count.
        modelled_bytes: operation → payload bytes. For send and isend they are the tensor's size, exactly. For a
            library collective they are `ModelledBytes`, from a formula, such as 2(p-1)/p of an all-reduced tensor.
        messages: operation → number of messages (for a library collective, of calls).
        bytes_to: destination → payload bytes of send and isend. Library collectives do not tell their destinations, so
            they are missing here; algorithms that are built from messages are here whole.
        messages_to: destination → number of sends, as in `bytes_to`.
        observed_by_connection: both ends of a connection, this rank's first → bytes that the operating system counted
            on the connection, 0 included. The accounts of all ranks together tell all bytes from each rank to each.
    """

    observed_bytes: Bytes | None = None
    modelled_bytes: Mapping[str, Bytes] = field(default_factory=dict)
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
        """Payload bytes over all operations: exact where all are sends, `ModelledBytes` with a library collective."""
        return sum(self.modelled_bytes.values(), Bytes(0))

    @property
    def total_messages(self) -> int:
        """Messages over all operations."""
        return sum(self.messages.values())
