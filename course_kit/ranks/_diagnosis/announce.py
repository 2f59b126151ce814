"""Announcements of a rank's communication to the notebook: a thin layer over torch.distributed's functions.

Each call of the reader's first sends its description (group, number, shape, dtype, …) to the notebook, and then runs.
Sending before running is the point: however a call ends, the notebook knows of it. Without diagnosis the layer is taken
off, and torch.distributed is untouched. Calls from C++ (DistributedDataParallel's own, DTensor's) pass below the layer;
for those `collective_in` asks the flight recorder that gloo and NCCL keep.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import sys
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from course_kit.communications import COMMUNICATIONS, backend_of, unwatch_waits, watch_waits
from course_kit.ranks._diagnosis import stacks
from course_kit.ranks._diagnosis.matching import Call, CollectiveCall, PointToPointCall, Waiting
from course_kit.ranks._diagnosis.stacks import names_of

_COVERED = {called[5:]: found for called, found in COMMUNICATIONS.items() if called.startswith("dist.")}
"""Function of torch.distributed → its line of the table."""
_UNEVEN = ("all_to_all_single", "all_to_all")
_POSTS = ("isend", "irecv", "batch_isend_irecv")
"""These return at once, so a rank that is in one is slow and does not wait: it waits in `wait`."""


class CommunicationInterceptor:
    """The layer of one rank. `send` delivers a message to the notebook."""

    def __init__(self, rank: int, send: Callable[[tuple[Any, ...]], None]) -> None:
        self._rank = rank
        self._send = send
        self._inside = threading.local()
        self._originals: dict[str, Any] = {}
        self._sequences: dict[tuple[object, ...], int] = defaultdict(int)
        self._works: weakref.WeakKeyDictionary[Any, Call] = weakref.WeakKeyDictionary()
        self._unwaited: weakref.WeakKeyDictionary[Any, weakref.finalize] = weakref.WeakKeyDictionary()
        self._lost: deque[Call] = deque()
        self._tickets = 0
        self.waiting: dict[int, Waiting] = {}

    def put_on(self) -> None:
        """Cover torch.distributed's functions, and count from zero."""
        self._sequences.clear()
        self._lost.clear()
        if self._originals:
            return
        for name in (*_COVERED, "batch_isend_irecv"):
            if original := getattr(c10d, name, None):
                self._originals[name] = original
                self._replace(name, self._covered(name, original))
        watch_waits(self._waits_for)

    def take_off(self) -> None:
        """Leave torch.distributed as it came."""
        for name, original in self._originals.items():
            self._replace(name, original)
        if self._originals:
            unwatch_waits(self._waits_for)
        self._originals.clear()

    @staticmethod
    def _replace(name: str, function: Callable[..., Any]) -> None:
        setattr(c10d, name, function)
        if hasattr(dist, name):
            setattr(dist, name, function)

    def _covered(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def covered(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "call", False):  # a collective that is made of others counts once
                return original(*args, **kwargs)
            try:
                given = signature.bind(*args, **kwargs)
                given.apply_defaults()
                calls = self._describe(name, given.arguments, sys._getframe(1))
            except (TypeError, ValueError, AttributeError, RuntimeError):
                calls = []  # the call itself is wrong: torch's own message is the one to see
            for call in calls:
                self._refuse_strangers(call)
            calls = [self._numbered(call) for call in calls]  # not before: what is refused or no call has no number
            self.tell_lost()
            for call in calls:
                self._send(("entered", call))
            self._inside.call = True
            try:
                with self._in_call(calls[0] if calls and name not in _POSTS else None):
                    result = original(*args, **kwargs)
            finally:
                self._inside.call = False
            self._remember(result, calls)
            if calls and name == "recv":
                self._found_sender(calls[0], result)
            return result

        return covered

    def _refuse_strangers(self, call: Call) -> None:
        """Raise for a peer that is no rank, or is this rank itself: gloo would wait for ever, or crash the process."""
        if not isinstance(call, PointToPointCall):
            return
        peer, way = (call.receiver, "to") if call.direction == "send" else (call.sender, "from")
        world_size = dist.get_world_size()
        if peer is not None and not 0 <= peer < world_size:
            raise ValueError(f"{call.collective} {way} rank {peer}, but the ranks are 0 to {world_size - 1}")
        if peer == self._rank and call.backend == "gloo":
            raise ValueError(f"{call.collective} {way} rank {peer}, which is this rank itself")

    @contextlib.contextmanager
    def _in_call(self, call: Call | None) -> Iterator[None]:
        """Mark this thread as waiting in `call`; without one, keep its mark (a `barrier` waits for work, too)."""
        if call is None:
            yield
            return
        thread, outer = threading.get_ident(), self.waiting.get(threading.get_ident())
        self._tickets += 1
        self.waiting[thread] = Waiting(call, self._tickets)
        try:
            yield
        finally:
            del self.waiting[thread]
            if outer is not None:  # what a call pickles may wait for another one
                self.waiting[thread] = outer

    def _waits_for(self, work: dist.Work) -> contextlib.AbstractContextManager[None]:
        if unwaited := self._unwaited.pop(work, None):
            unwaited.detach()
        return self._in_call(self._works.get(work))

    def tell_lost(self) -> None:
        """Tell the notebook of messages whose handle is gone without a `wait`: the backend may have dropped them."""
        with contextlib.suppress(IndexError):
            while True:
                self._send(("lost", self._lost.popleft()))

    def _remember(self, result: Any, calls: list[Call]) -> None:
        """Note the call that an unfinished piece of work belongs to, for the moment when the work is waited for."""
        works = result if isinstance(result, list) else [result]
        for work, call in zip(works, calls, strict=False):
            if isinstance(work, c10d.Work):
                self._works[work] = call
                if isinstance(call, PointToPointCall):
                    # A finalizer runs anywhere, also while this thread sends: it may only note.
                    self._unwaited[work] = weakref.finalize(work, self._lost.append, call)

    def _found_sender(self, call: Call, sender: int) -> None:
        if isinstance(call, PointToPointCall) and call.sender is None:  # with one it is numbered already
            self._send(("received", self._numbered(call._replace(sender=sender))))

    def _numbered(self, call: Call) -> Call:
        """A message with its number between its two ranks, once both are known; a collective has its own already."""
        if not isinstance(call, PointToPointCall) or call.sender is None:
            return call
        return call._replace(sequence=self._count((call.group, call.direction, call.sender, call.receiver, call.tag)))

    def _count(self, key: tuple[object, ...]) -> int:
        self._sequences[key] += 1
        return self._sequences[key] - 1

    def _describe(self, name: str, given: dict[str, Any], frame: FrameType) -> list[Call]:
        if name == "batch_isend_irecv":
            return [self._point_to_point(op.op.__name__, vars(op), op.peer, frame) for op in given["p2p_op_list"]]
        if _COVERED[name].kind != "collective":
            group = given["group"] or c10d._get_default_group()
            side = "dst" if "send" in name else "src"
            return [self._point_to_point(name, given, _global_rank(given, side, group), frame)]
        return self._collective(name, given, frame)

    def _point_to_point(self, name: str, given: dict[str, Any], peer: int | None, frame: FrameType) -> PointToPointCall:
        group = given["group"] or c10d._get_default_group()
        sends = "send" in name
        sender, receiver = (self._rank, peer) if sends else (peer, self._rank)
        tensor, tag = given.get("tensor"), given.get("tag", 0)
        direction = "send" if sends else "recv"
        assert receiver is not None
        return PointToPointCall(
            group=group.group_name, direction=direction, sender=sender, receiver=receiver, tag=tag, sequence=0,
            collective=name, elements=None if tensor is None else tensor.numel(),
            dtype=None if tensor is None else _dtype(tensor), site=stacks.call_site(frame),
            backend=backend_of(torch.device("cpu") if tensor is None else tensor.device, group),
        )  # fmt: skip

    def _collective(self, name: str, given: dict[str, Any], frame: FrameType) -> list[Call]:
        group = given.get("group") or c10d._get_default_group()
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return []
        holds = _COVERED[name].holds
        tensor = given[holds] if holds else None
        tensors = [] if tensor is None else tensor if isinstance(tensor, list) else [tensor]
        details: list[tuple[str, object]] = []
        if name == "new_group":
            details.append(("ranks", tuple(given["ranks"] or ())))
        if tensors and name not in _UNEVEN:
            details.append(("shape", ", ".join(str(tuple(t.shape)) for t in tensors)))
        if tensors:
            details.append(("dtype", _dtype(tensors[0])))
        if isinstance(given.get("op"), dist.ReduceOp | dist.ReduceOp.RedOpType):
            details.append(("reduce op", str(given["op"]).rpartition(".")[2]))
        for side in ("src", "dst"):
            if side in given:
                details.append((side, _global_rank(given, side, group) or 0))  # torch's default root is rank 0
        members = tuple(dist.get_process_group_ranks(group))
        sequence = self._count((group.group_name, "collective"))
        named = names_of(tensors[0], stacks.user_frames(frame)) if len(tensors) == 1 else ()
        site = stacks.call_site(frame)
        parts = _parts(name, given, len(members)) if name in _UNEVEN else None
        return [CollectiveCall(group.group_name, members, sequence, name, tuple(details), site, named, parts)]


def _global_rank(given: dict[str, Any], side: str, group: Any) -> int | None:
    """The root or peer as a rank of the whole job, whichever way the caller named it."""
    in_group = given.get(f"group_{side}")
    return given.get(side) if in_group is None else dist.get_global_rank(group, in_group)


def _parts(name: str, given: dict[str, Any], size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Amounts that an all-to-all sends to and receives from each member: rows, or elements where it takes lists."""
    if name == "all_to_all":
        sends, takes = given["input_tensor_list"], given["output_tensor_list"]
        return tuple(t.numel() for t in sends), tuple(t.numel() for t in takes)
    sends, takes = given["input_split_sizes"], given["output_split_sizes"]
    even = {side: [given[side].shape[0] // size] * size for side in ("input", "output")}
    return tuple(sends or even["input"]), tuple(takes or even["output"])


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def collective_in(frame: FrameType | None) -> str:
    """The communication that a thread is in, by its stack or by the backend's flight recorder; "" if in none."""
    name = ""
    while frame is not None:
        if frame.f_code.co_filename == c10d.__file__ and frame.f_code.co_name in _COVERED:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name or _recorded_call()


def _recorded_call() -> str:
    """The collective that the backend is in the middle of. No backend keeps a record of send and recv."""
    try:
        last = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())["entries"][-1]  # type: ignore[attr-defined]
        return "" if last["retired"] else last["profiling_name"].rpartition(":")[2]
    except (AttributeError, IndexError, KeyError, RuntimeError, ValueError):
        return ""
