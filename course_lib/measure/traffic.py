"""What this rank sends: bytes and messages by operation, and what the operating system saw leaving.

    def on_each_rank():
        with measure.traffic() as sent:
            dist.all_reduce(torch.ones(1000))
        return sent

    ranks.run(on_each_rank, world_size=4)   # four TrafficAccounts

Every communication of torch.distributed is an operation of PyTorch's dispatcher, whoever calls it: your own line, a
function imported by name before, DistributedDataParallel's C++ code. So a dispatch mode sees them all.

Lesson 00 opens this module; lesson 06 counts with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.accounts import TrafficAccount
from course_lib.measure.sockets import bytes_by_socket
from course_lib.predict.traffic import all_reduce, all_to_all, reduce_scatter
from course_lib.units import Bytes


@contextmanager
def traffic() -> Iterator[TrafficAccount]:
    """Count what this rank sends inside the `with` block. Use it inside a function that runs on ranks.

    `sent_bytes` and `messages` are exact for send, isend and batch_isend_irecv (all named "send"), and for these
    `bytes_to` and `messages_to` tell them apart by destination, a rank of the whole world. Collectives of the library
    are *not* told apart by destination: they do not say whom they send to. For them the sums are this rank's share by
    the formula of the algorithm that moves least: a library may use another one, and some do. `wire_bytes` is the
    difference of the kernel's own TCP counters, payload and the backend's headers, without the rendezvous store: it
    tells. On the wire a small tensor costs visibly more than its bytes, a large one hardly.

    Not every rank needs to call this, and it sends nothing. Work that is still under way at the end of the block (an
    `async_op=True` that nobody waited for) is in `sent_bytes` but may be missing from `wire_bytes`: wait for it, or
    end the block with a `dist.barrier()`. Communication from other threads of this process than the caller's (and
    autograd's) is only in `wire_bytes`.

    Yields:
        The account. It fills as the block runs; `wire_bytes` is set at its end and stays None where the system
        does not count (macOS, Windows) or does not see it (NCCL).
    """
    account = TrafficAccount(sent_bytes={}, messages={}, bytes_to={}, messages_to={})
    before = bytes_by_socket()
    try:
        with _Counter(account):
            yield account
    finally:
        after = bytes_by_socket()
        if before is not None and after is not None:
            wire = sum(sent - before.get(socket, 0) for socket, sent in after.items())
            object.__setattr__(account, "wire_bytes", Bytes(wire))  # an account is frozen for everyone else


class _Call(NamedTuple):
    """One communication: its arguments by name, and the group that it runs in."""

    given: dict[str, Any]
    world_size: int
    rank: int

    @property
    def turn(self) -> int:
        """This rank's number, counted from the root."""
        root = self.given.get("root_rank", self.given.get("src", 0))
        return (self.rank - root) % self.world_size

    def bytes_of(self, *names: str) -> int:
        """Size of the tensors in the first of these arguments that the operation has."""
        values = next(self.given[name] for name in names if name in self.given)
        return sum(t.numel() * t.element_size() for t in tree_leaves(values) if isinstance(t, torch.Tensor))


def _all_reduce(call: _Call) -> int:
    return all_reduce(call.bytes_of("tensors", "input", "inputs"), call.world_size).bytes


def _broadcast(call: _Call) -> int:
    """Down gloo's tree: number t from the root hands on to t + 1, t + 2, t + 4, … by steps larger than t."""
    steps = [2**k for k in range(call.world_size.bit_length())]
    children = sum(1 for step in steps if step > call.turn and call.turn + step < call.world_size)
    return children * call.bytes_of("tensors", "input")


def _reduce(call: _Call) -> int:
    """Reduce-scatter, then every rank hands its part to the root."""
    n_bytes = call.bytes_of("tensors")
    return n_bytes if call.turn else reduce_scatter(n_bytes, call.world_size).bytes


def _all_gather(call: _Call) -> int:
    """Around a ring, p - 1 parts of the size of this rank's own."""
    return (call.world_size - 1) * call.bytes_of("input_tensors", "input_list", "input_tensor", "inputs", "input")


def _reduce_scatter(call: _Call) -> int:
    n_bytes = call.bytes_of("input_tensors", "input_tensor", "inputs", "input")
    return reduce_scatter(n_bytes, call.world_size).bytes


def _all_to_all(call: _Call) -> int:
    """All but its own part."""
    tensors = call.given.get("input_tensors")
    if tensors is not None:
        return call.bytes_of("input_tensors") - tensors[call.rank].numel() * tensors[call.rank].element_size()
    n_bytes, splits = call.bytes_of("input"), call.given.get("input_split_sizes")
    if not splits:
        return all_to_all(n_bytes, call.world_size).bytes
    return n_bytes - n_bytes * splits[call.rank] // max(1, sum(splits))


def _gather(call: _Call) -> int:
    return call.bytes_of("input_tensors") if call.turn else 0


def _scatter(call: _Call) -> int:
    return 0 if call.turn else (call.world_size - 1) * call.bytes_of("output_tensors")


def _send(call: _Call) -> int:
    return call.bytes_of("tensors", "tensor")


def _nothing(_call: _Call) -> int:
    return 0


_OPERATIONS: dict[str, tuple[str, Callable[[_Call], int]]] = {
    "allreduce_": ("all_reduce", _all_reduce),
    "allreduce_coalesced_": ("all_reduce", _all_reduce),
    "all_reduce": ("all_reduce", _all_reduce),
    "all_reduce_": ("all_reduce", _all_reduce),
    "all_reduce_coalesced": ("all_reduce", _all_reduce),
    "all_reduce_coalesced_": ("all_reduce", _all_reduce),
    "broadcast_": ("broadcast", _broadcast),
    "broadcast": ("broadcast", _broadcast),
    "reduce_": ("reduce", _reduce),
    "allgather_": ("all_gather", _all_gather),
    "_allgather_base_": ("all_gather", _all_gather),
    "allgather_coalesced_": ("all_gather", _all_gather),
    "allgather_into_tensor_coalesced_": ("all_gather", _all_gather),
    "all_gather_into_tensor": ("all_gather", _all_gather),
    "all_gather_into_tensor_out": ("all_gather", _all_gather),
    "all_gather_into_tensor_coalesced": ("all_gather", _all_gather),
    "reduce_scatter_": ("reduce_scatter", _reduce_scatter),
    "_reduce_scatter_base_": ("reduce_scatter", _reduce_scatter),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", _reduce_scatter),
    "reduce_scatter_tensor": ("reduce_scatter", _reduce_scatter),
    "reduce_scatter_tensor_out": ("reduce_scatter", _reduce_scatter),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", _reduce_scatter),
    "alltoall_": ("all_to_all", _all_to_all),
    "alltoall_base_": ("all_to_all", _all_to_all),
    "all_to_all_single": ("all_to_all", _all_to_all),
    "gather_": ("gather", _gather),
    "scatter_": ("scatter", _scatter),
    "send": ("send", _send),
    "isend": ("send", _send),
    "barrier": ("barrier", _nothing),
    "monitored_barrier_": ("barrier", _nothing),
}
"""Operation of the dispatcher (in c10d or _c10d_functional) → its name here, and the bytes that a rank sends."""


class _Counter(TorchDispatchMode):
    """Adds every communication that passes the dispatcher to an account."""

    def __init__(self, account: TrafficAccount) -> None:
        super().__init__()
        self._bytes: dict[str, Bytes] = account.sent_bytes  # type: ignore[assignment]
        self._messages: dict[str, int] = account.messages  # type: ignore[assignment]
        self._bytes_to: dict[int, Bytes] = account.bytes_to  # type: ignore[assignment]
        self._messages_to: dict[int, int] = account.messages_to  # type: ignore[assignment]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation; if it is a communication, count it first (the call may change its tensors)."""
        namespace, _, operation = func._schema.name.partition("::")
        if namespace in ("c10d", "_c10d_functional") and operation in _OPERATIONS:
            self._count(operation, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _count(self, operation: str, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        group = _group(given)
        name, formula = _OPERATIONS[operation]
        n_bytes = Bytes(formula(_Call(given, group.size(), group.rank())))
        _add(self._bytes, self._messages, name, n_bytes)
        if name == "send":
            _add(self._bytes_to, self._messages_to, dist.get_global_rank(group, given["dst"]), n_bytes)


def _add(totals: dict[Any, Bytes], counts: dict[Any, int], key: str | int, n_bytes: Bytes) -> None:
    totals[key] = totals.get(key, Bytes(0)) + n_bytes
    counts[key] = counts.get(key, 0) + 1


def _group(given: dict[str, Any]) -> dist.ProcessGroup:
    """The process group of a call: boxed for the dispatcher, or by name."""
    if "process_group" in given:
        return dist.ProcessGroup.unbox(given["process_group"])  # type: ignore[attr-defined]
    name = given["group_name"]
    return name if isinstance(name, dist.ProcessGroup) else c10d._resolve_process_group(name)  # type: ignore[attr-defined]
