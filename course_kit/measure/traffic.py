"""Bytes and messages that this rank sends, by operation, and the bytes that the operating system saw leaving.

    def on_each_rank():
        with measure.traffic() as sent:
            dist.all_reduce(torch.ones(1000))
        return sent

    ranks.run(on_each_rank, world_size=4)   # four TrafficAccounts

Two witnesses know nothing of each other: the kernel counts bytes (`observed_bytes`), a dispatch mode counts calls and
finds their bytes (`modelled_bytes`). A send's tensor is its payload. But the messages of a library's collectives are
hidden inside the library: their bytes are `ModelledBytes`, the cheapest algorithm's for the tensors that were passed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from course_kit.accounts import ModelledBytes, TrafficAccount
from course_kit.communications import COMMUNICATIONS, Communication, backend_of
from course_kit.units import Bytes


@contextmanager
def traffic() -> Iterator[TrafficAccount]:
    """Count the bytes and messages that this rank sends inside the `with` block, in a function that runs on ranks.

    `observed_bytes` is the difference of the kernel's own TCP counters: payload and the backend's headers, without the
    rendezvous store. On the wire a small tensor costs visibly more than its bytes, a large one hardly. No formula has a
    part in this number; where it exists, claims about bytes rest on it (`sent_bytes`).

    `modelled_bytes` and `messages` tell operations apart. For send, isend and batch_isend_irecv (all named "send")
    they are exact, and `bytes_to` and `messages_to` tell them apart by destination, a rank of the whole world. For
    library collectives `messages` counts calls, and the bytes are this rank's share by the formula of the algorithm
    that moves least: a library may use another one, and some do.

    Not every rank needs to count, and counting sends nothing. Work that is still under way at the end of the block (an
    `async_op=True` without its `wait`) is in `modelled_bytes` but may be missing from `observed_bytes`: wait for
    it, or end the block with a `dist.barrier()`. Communication from other threads of this process than the caller's
    (and autograd's) is only in `observed_bytes`.

    Yields:
        The account, which fills as the block runs; `observed_bytes` is set at its end and stays None where the system
        does not count (macOS, Windows) or does not see the bytes (NCCL, in a single call of the block, too).
    """
    account = TrafficAccount()
    counter = _Counter(account)
    before = bytes_by_connection()
    try:
        with counter:
            yield account
    finally:
        after = bytes_by_connection()
        if before is not None and after is not None and not counter.past_the_sockets:
            observed = {each: Bytes(sent - before.get(each, 0)) for each, sent in after.items()}
            account.observed_by_connection.update(observed)  # type: ignore[attr-defined]
            total = sum(observed.values(), Bytes(0))
            object.__setattr__(account, "observed_bytes", total)  # an account is frozen for everyone else


class CommunicationMode(TorchDispatchMode):
    """Hands every communication to `on_communication`, and runs all other operations as they are."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from switching its compiler off around every operation: that costs more than the look."""
        return False

    @abstractmethod
    def on_communication(self, found: Communication, given: dict[str, Any], call: Callable[[], Any]) -> Any:
        """Run the operation by `call()`, and return its result; `given` are its arguments by name."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See one operation."""
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # a DTensor: let that take itself apart first; its plain calls come by here again
        found = COMMUNICATIONS.get(func._schema.name)
        if found is None:
            return func(*args, **(kwargs or {}))
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        return self.on_communication(found, given, lambda: func(*args, **(kwargs or {})))


def group_of(given: dict[str, Any]) -> dist.ProcessGroup:
    """The process group of a call: boxed for the dispatcher, or by name."""
    if "process_group" in given:
        return dist.ProcessGroup.unbox(given["process_group"])  # type: ignore[attr-defined]
    name = given["group_name"]
    return name if isinstance(name, dist.ProcessGroup) else c10d._resolve_process_group(name)  # type: ignore[attr-defined]


class _Counter(CommunicationMode):
    """Adds every communication that passes the dispatcher to an account."""

    def __init__(self, account: TrafficAccount) -> None:
        super().__init__()
        self._account: Any = account  # its mappings are read-only for all others
        self.past_the_sockets = False  # whether another backend than gloo has moved a tensor

    def on_communication(self, found: Communication, given: dict[str, Any], call: Callable[[], Any]) -> Any:
        """Count a communication that sends, before it runs: afterwards its tensors may have changed."""
        if found.kind in ("send", "collective"):
            group = group_of(given)
            sent = CommunicationCall(found, given, group.size(), group.rank())
            self.past_the_sockets |= any(backend_of(tensor.device, group) != "gloo" for tensor in sent.tensors)
            is_send = found.kind == "send"
            n_bytes = Bytes(sent.n_bytes) if is_send else ModelledBytes(round(_PAYLOADS[found.name](sent)))
            _add(self._account.modelled_bytes, self._account.messages, found.name, n_bytes)
            if is_send:
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
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that this rank contributes."""
        values = self.given.get(self.communication.holds)
        return [tensor for tensor in tree_leaves(values) if isinstance(tensor, torch.Tensor)]

    @property
    def n_bytes(self) -> int:
        """Size of the tensors that this rank contributes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    @property
    def turn(self) -> int:
        """This rank's number, counted from the root."""
        root = self.given.get("root_rank", self.given.get("src", 0))
        return (self.rank - root) % self.world_size


def _share(call: CommunicationCall) -> float:
    """(p-1)/p of the tensor, all but this rank's own part: the bytes of a reduce-scatter, or of half an all-reduce."""
    return call.n_bytes * (call.world_size - 1) / call.world_size


def _broadcast(call: CommunicationCall) -> int:
    """The bytes of gloo's tree: number t from the root hands on to t + 1, t + 2, t + 4, … by steps larger than t."""
    steps = [2**k for k in range(call.world_size.bit_length())]
    children = sum(1 for step in steps if step > call.turn and call.turn + step < call.world_size)
    return children * call.n_bytes


def _all_to_all(call: CommunicationCall) -> float:
    """All but the rank's own part."""
    tensors, splits = call.given.get("input_tensors"), call.given.get("input_split_sizes")
    if tensors is not None:
        return call.n_bytes - tensors[call.rank].numel() * tensors[call.rank].element_size()
    return call.n_bytes - call.n_bytes * splits[call.rank] // max(1, sum(splits)) if splits else _share(call)


_PAYLOADS: dict[str, Callable[[CommunicationCall], float]] = {
    "all_reduce": lambda call: 2 * _share(call),
    "broadcast": _broadcast,
    "reduce": lambda call: call.n_bytes if call.turn else _share(call),  # reduce-scatter, then each part to the root
    "all_gather": lambda call: (call.world_size - 1) * call.n_bytes,  # around a ring, the own part and p - 2 others'
    "reduce_scatter": _share,
    "all_to_all": _all_to_all,
    "gather": lambda call: call.n_bytes if call.turn else 0,
    "scatter": lambda call: 0 if call.turn else (call.world_size - 1) * call.n_bytes,
    "barrier": lambda _call: 0,
}
"""The course's name → bytes that the rank sends: the least possible (Patarasuk and Yuan 2009), or gloo's tree."""


_BYTES_SENT_AT = 200  # u64 tcpi_bytes_sent in struct tcp_info (include/uapi/linux/tcp.h, Linux 4.19); then
_BYTES_RETRANS_AT = 208  # u64 tcpi_bytes_retrans: of these, sent again because they were lost
_NOT_SENT_AT = 144  # u32 tcpi_notsent_bytes: handed to the kernel, but still in its queue
_PATIENCE_S = 0.05

Connection = tuple[str, str]
"""The two ends of a connection, "host:port"; this process's own first."""


def bytes_by_connection() -> dict[Connection, int] | None:
    """Bytes sent so far over every TCP connection of this process but those to the rendezvous store.

    The call waits a moment until the kernel's queues are empty. The result is None where no bytes are counted: not on
    Linux, no process group, or a group that does not use TCP (NCCL).
    """
    end = time.monotonic() + _PATIENCE_S
    while True:
        counted = _sent_and_queued()
        if counted is None or not any(queued for _, queued in counted.values()) or time.monotonic() > end:
            return None if counted is None else {connection: sent for connection, (sent, _) in counted.items()}
        time.sleep(0.001)


def bytes_handed_over() -> dict[Connection, int]:
    """The same with the bytes in the kernel's queues, which wait for a busy other end: all bytes written to each."""
    return {connection: sent + queued for connection, (sent, queued) in (_sent_and_queued() or {}).items()}


def _sent_and_queued() -> dict[Connection, tuple[int, int]] | None:
    if not sys.platform.startswith("linux") or not dist.is_initialized() or "gloo" not in dist.get_backend_config():
        return None
    counted: dict[Connection, tuple[int, int]] = {}
    store_port = _store_port()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed since the listing, or not a connected socket
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue  # not TCP
                (host, port, *_), (other_host, other_port, *_) = connection.getsockname(), connection.getpeername()
                if store_port in (port, other_port):
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                if len(info) < _BYTES_RETRANS_AT + 8:
                    return None  # an older kernel, which does not count
                sent, again = struct.unpack_from("=QQ", info, _BYTES_SENT_AT)
                (queued,) = struct.unpack_from("=I", info, _NOT_SENT_AT)
                counted[f"{host}:{port}", f"{other_host}:{other_port}"] = sent - again, queued
    return counted


def _store_port() -> int | None:
    """The port of the store through which the ranks found each other, whose traffic is not theirs."""
    store: Any = c10d._get_default_store()
    while hasattr(store, "underlying_store"):  # a PrefixStore
        store = store.underlying_store
    return getattr(store, "port", None)  # a TCPStore has one
