"""Bytes and messages that this rank sends, by operation, and the bytes that the operating system saw leaving.

    def on_each_rank():
        with measure.traffic() as sent:
            dist.all_reduce(torch.ones(1000))
        return sent

    ranks.run(on_each_rank, world_size=4)   # four TrafficAccounts

Two witnesses know nothing of each other: the kernel counts bytes (`observed_bytes`), a dispatch mode counts calls and
finds their bytes (`modelled_bytes`). A send's tensor is its payload. But nobody outside a library sees the messages of
its collectives: their bytes come from a formula for the cheapest algorithm, with the sizes of the tensors that were
really passed, and the result says of itself that it is `ModelledBytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from course_kit.accounts import ModelledBytes, TrafficAccount
from course_kit.communications import Communication
from course_kit.measure.dispatch import CommunicationMode, group_of
from course_kit.measure.sockets import bytes_by_connection
from course_kit.units import Bytes


@contextmanager
def traffic() -> Iterator[TrafficAccount]:
    """Count what this rank sends inside the `with` block. Use it inside a function that runs on ranks.

    `observed_bytes` is the difference of the kernel's own TCP counters: payload and the backend's headers, without the
    rendezvous store. On the wire a small tensor costs visibly more than its bytes, a large one hardly. No formula has a
    part in it; where it exists, claims about bytes rest on it (`sent_bytes`).

    `modelled_bytes` and `messages` tell operations apart. For send, isend and batch_isend_irecv (all named "send")
    they are exact, and `bytes_to` and `messages_to` tell them apart by destination, a rank of the whole world. For
    library collectives `messages` counts calls, and the bytes are this rank's share by the formula of the algorithm
    that moves least: a library may use another one, and some do.

    Not every rank needs to count, and counting sends nothing. Work that is still under way at the end of the block (an
    `async_op=True` that nobody waited for) is in `modelled_bytes` but may be missing from `observed_bytes`: wait for
    it, or end the block with a `dist.barrier()`. Communication from other threads of this process than the caller's
    (and autograd's) is only in `observed_bytes`.

    Yields:
        The account, which fills as the block runs; `observed_bytes` is set at its end and stays None where the system
        does not count (macOS, Windows) or does not see it (NCCL).
    """
    account = TrafficAccount(None, {}, {}, {}, {}, {})
    before = bytes_by_connection()
    try:
        with _Counter(account):
            yield account
    finally:
        after = bytes_by_connection()
        if before is not None and after is not None:
            observed = {each: Bytes(sent - before.get(each, 0)) for each, sent in after.items()}
            account.observed_by_connection.update(observed)  # type: ignore[attr-defined]
            total = sum(observed.values(), Bytes(0))
            object.__setattr__(account, "observed_bytes", total)  # an account is frozen for everyone else


class _Counter(CommunicationMode):
    """Adds every communication that passes the dispatcher to an account."""

    def __init__(self, account: TrafficAccount) -> None:
        super().__init__()
        self._account: Any = account  # whose mappings nobody else may change

    def on_communication(self, found: Communication, given: dict[str, Any], call: Callable[[], Any]) -> Any:
        """Count a communication that sends, before it runs: afterwards its tensors may have changed."""
        if found.kind in ("send", "collective"):
            group = group_of(given)
            n_bytes = payload_bytes(CommunicationCall(found, given, group.size(), group.rank()))
            _add(self._account.modelled_bytes, self._account.messages, found.name, n_bytes)
            if found.kind == "send":
                receiver = dist.get_global_rank(group, given["dst"])
                _add(self._account.bytes_to, self._account.messages_to, receiver, n_bytes)
        return call()


def _add(totals: dict[Any, Bytes], counts: dict[Any, int], key: str | int, n_bytes: Bytes) -> None:
    totals[key] = totals[key] + n_bytes if key in totals else n_bytes
    counts[key] = counts.get(key, 0) + 1


@dataclass(frozen=True)
class CommunicationCall:
    """One communication under way: its line of the table, its arguments by name, and its group."""

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
    """The bytes that this rank sends in a call: the tensor's for a send, a formula's for a collective."""
    if call.communication.kind == "send":
        return Bytes(call.n_bytes)
    return ModelledBytes(round(_PAYLOADS[call.communication.name](call)))


def _share(call: CommunicationCall) -> float:
    """(p-1)/p of the tensor: all but this rank's own part. A reduce-scatter, half an all-reduce."""
    return call.n_bytes * (call.world_size - 1) / call.world_size


def _broadcast(call: CommunicationCall) -> int:
    """Down gloo's tree: number t from the root hands on to t + 1, t + 2, t + 4, … by steps larger than t."""
    steps = [2**k for k in range(call.world_size.bit_length())]
    children = sum(1 for step in steps if step > call.turn and call.turn + step < call.world_size)
    return children * call.n_bytes


def _reduce(call: CommunicationCall) -> float:
    """Reduce-scatter, then each rank hands its part to the root: (p-1)/p and 1/p of the tensor, the root the first."""
    return call.n_bytes if call.turn else _share(call)


def _all_to_all(call: CommunicationCall) -> float:
    """All but the rank's own part."""
    tensors, splits = call.given.get("input_tensors"), call.given.get("input_split_sizes")
    if tensors is not None:
        return call.n_bytes - tensors[call.rank].numel() * tensors[call.rank].element_size()
    return call.n_bytes - call.n_bytes * splits[call.rank] // max(1, sum(splits)) if splits else _share(call)


_PAYLOADS: dict[str, Callable[[CommunicationCall], float]] = {
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
