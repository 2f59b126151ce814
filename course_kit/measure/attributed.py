"""Attributed bytes: what a call of a library collective costs its rank *if* the library uses the cheapest algorithm.

Nobody outside a library sees the messages of its collectives. So their bytes are attributed to them by formula, with
the sizes of the tensors that were really passed, and the result says of itself that it is `Attributed`. What did
leave is the kernel's count, `TrafficAccount.observed_bytes`. A send needs no formula: its tensor is its payload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from course_kit.accounts import Attributed
from course_kit.communications import Communication
from course_kit.units import Bytes


@dataclass(frozen=True)
class CommunicationCall:
    """One communication on its way: its line of the table, its arguments by name, and the group that it runs in."""

    communication: Communication
    given: dict[str, Any]
    world_size: int
    rank: int

    @property
    def n_bytes(self) -> int:
        """Size of the tensors that this rank contributes."""
        values = self.given.get(self.communication.holds)
        return sum(t.numel() * t.element_size() for t in tree_leaves(values) if isinstance(t, torch.Tensor))

    @property
    def turn(self) -> int:
        """This rank's number, counted from the root."""
        root = self.given.get("root_rank", self.given.get("src", 0))
        return (self.rank - root) % self.world_size


def payload_bytes(call: CommunicationCall) -> Bytes:
    """What this rank sends in a call: counted for a send, attributed for a collective."""
    if call.communication.kind == "send":
        return Bytes(call.n_bytes)
    return Attributed(round(_SHARES[call.communication.name](call)))


def _share(call: CommunicationCall) -> float:
    """(p-1)/p of the tensor: all but this rank's own part. A reduce-scatter, half an all-reduce."""
    return call.n_bytes * (call.world_size - 1) / call.world_size


def _broadcast(call: CommunicationCall) -> int:
    """Down gloo's tree: number t from the root hands on to t + 1, t + 2, t + 4, … by steps larger than t."""
    steps = [2**k for k in range(call.world_size.bit_length())]
    children = sum(1 for step in steps if step > call.turn and call.turn + step < call.world_size)
    return children * call.n_bytes


def _reduce(call: CommunicationCall) -> float:
    """Reduce-scatter, then every rank hands its part to the root."""
    return call.n_bytes if call.turn else _share(call)


def _all_to_all(call: CommunicationCall) -> float:
    """All but its own part."""
    tensors, splits = call.given.get("input_tensors"), call.given.get("input_split_sizes")
    if tensors is not None:
        return call.n_bytes - tensors[call.rank].numel() * tensors[call.rank].element_size()
    return call.n_bytes - call.n_bytes * splits[call.rank] // max(1, sum(splits)) if splits else _share(call)


_SHARES: dict[str, Callable[[CommunicationCall], float]] = {
    "all_reduce": lambda call: 2 * call.n_bytes * (call.world_size - 1) / call.world_size,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": lambda call: (call.world_size - 1) * call.n_bytes,  # around a ring, the own part and p - 2 others'
    "reduce_scatter": _share,
    "all_to_all": _all_to_all,
    "gather": lambda call: call.n_bytes if call.turn else 0,
    "scatter": lambda call: 0 if call.turn else (call.world_size - 1) * call.n_bytes,
    "barrier": lambda _call: 0,
}
"""The course's name → bytes that the rank sends: the least possible (Patarasuk and Yuan 2009), or gloo's tree."""
