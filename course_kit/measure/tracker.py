"""What is alive, and since when: the part of `measure.memory` that watches.

Every operation of PyTorch passes through a *dispatch mode*. This one looks at the storages (the blocks of memory under
the tensors) that come out of each operation and keeps a weak reference to them: it learns when a block is freed, and
never keeps one alive. A second pair of eyes, `saved_tensors_hooks`, sees which tensors autograd keeps for the
backward pass. Whose block it is (a weight, a gradient, Adam's variance) is often known only later, so the account is
drawn up from the lifetimes at the end.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course_kit.measure.source_lines import line_now
from course_kit.measure.storages import plain_tensors, tensors_in

_LIFT = torch.ops.aten.lift_fresh.default


class TrackedStorage(weakref.ref):
    """One block of memory: when it lived, how large it was, what it was for. A weak reference to it, too.

    Times are row numbers of the timeline: the block is alive in the rows from `born` up to, not including, `died`.

    Attributes:
        born, died: rows; `died` is None while it lives.
        sizes: (row, bytes) for its birth and for every resize.
        owner: "parameters", "gradients" or "optimizer" when it belongs to one of them, else "".
        saved: the spans of rows during which autograd held it for a backward pass.
        holders: how many nodes of the graph hold it now.
        address: the key under which the tracker knows it while it lives.
        made_by, place: the operation that made it (None: it was there before) and the module or phase that ran then.
        line: file, number and function of the line that made it; None where that is not asked for, or not known.
        name: its owner's name for it, or "".
        shape, dtype: of the first tensor seen on it.
    """

    __slots__ = (
        "address", "born", "died", "dtype", "holders", "line", "made_by", "name", "owner", "place", "saved", "shape",
        "sizes"
    )  # fmt: skip

    address: int
    born: int
    died: int | None
    sizes: list[tuple[int, int]]
    owner: str
    saved: list[tuple[int, int | None]]
    holders: int
    line: tuple[str, int, str] | None
    made_by: Any
    place: str
    name: str
    shape: torch.Size
    dtype: torch.dtype

    def spans(self, end: int) -> Iterator[tuple[int, int, str, int]]:
        """Its life as (first row, row after the last, category, bytes), cut where its size or its category changes."""
        stop = end if self.died is None else self.died
        if not self.saved and len(self.sizes) == 1:  # most are like this: nothing to cut
            if self.born < stop:
                yield self.born, stop, self.owner or "temporaries", self.sizes[0][1]
            return
        cuts = {self.born, stop, *(row for row, _ in self.sizes)}
        cuts.update(row for span in self.saved for row in span if row is not None)
        rows = sorted(cuts)
        for first, last in pairwise(rows):
            yield first, last, self.category(first), self.size(first)

    def category(self, row: int) -> str:
        """What it counts as in this row. An activation is one from its birth, although autograd saves it later."""
        if self.owner:
            return self.owner
        saved = any(start <= row and (stop is None or row < stop) for start, stop in self.saved)
        return "activations" if saved else "temporaries"

    @property
    def label(self) -> str:
        """Its name, or where it came from: "blocks.0.attention: softmax"."""
        if self.name or self.made_by is None:
            return self.name or "input"
        operation = self.made_by._schema.name.split("::")[-1].strip("_")
        return f"{self.place}: {operation}" if self.place else operation

    def size(self, row: int) -> int:
        """Its bytes in this row."""
        return next(nbytes for since, nbytes in reversed(self.sizes) if since <= row)


@dataclass
class Phase:
    """A stretch of a step: "forward", "backward" or "optimizer step".

    Attributes:
        name: which of them.
        start, stop: its rows of the timeline, the second not included.
    """

    name: str
    start: int
    stop: int


class Saved:
    """What autograd holds in place of a saved tensor: an alias of it, and a note to the tracker when it lets go."""

    __slots__ = ("alias", "storages", "tracker", "version")

    def __init__(self, alias: Tensor, storages: list[TrackedStorage], tracker: Tracker) -> None:
        self.alias, self.storages, self.tracker = alias, storages, tracker
        self.version = alias._version

    def __del__(self) -> None:
        for storage in self.storages:
            self.tracker.released(storage)


class Tracker(TorchDispatchMode):
    """Keeps the lifetimes of all storages that operations return while it is active.

    The timeline has one row per operation, taken when its results exist, plus one wherever a phase begins or ends.
    Memory that a kernel allocates and frees inside one operation is not seen.

    Args:
        lines: note which line made each of them.
    """

    def __init__(self, lines: bool = False) -> None:
        super().__init__()
        self.row = 0
        self._lines = lines
        self.storages: list[TrackedStorage] = []
        self.phases: list[Phase] = []
        self.where: list[str] = []
        self._live: dict[int, TrackedStorage] = {}
        self.phase: str | None = None
        self._open = True
        self._aside = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not compiled, so PyTorch need not switch its compiler off around every operation: that would cost as much as
        the tracking."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, then look at what it made."""
        if types and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor and its like: let it unwrap itself, then look at the plain tensors inside
        if self._aside or not self._open:
            return func(*args, **(kwargs or {}))
        self._notice_backward()
        # What a backward pass or an optimizer reads has been met before; torch.tensor([…]) reads what it has just made.
        if self.phase not in ("backward", "optimizer step") and func is not _LIFT:
            for tensor in tensors_in(args):
                self._add(tensor)
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            self._add(tensor, func)
        self.row += 1
        return result

    def knows(self, block: torch.UntypedStorage) -> bool:
        """Whether this block of memory has been met, and is alive."""
        return block._cdata in self._live

    def add(self, tensor: Tensor, from_start: bool = False) -> list[TrackedStorage]:
        """The storages under a tensor, now known: born in this row, or before the first one if `from_start`."""
        storages = [self._add(plain, from_start=from_start) for plain in plain_tensors(tensor)]
        return [storage for storage in storages if storage is not None]

    def _add(self, tensor: Tensor, made_by: Any = None, from_start: bool = False) -> TrackedStorage | None:
        block = tensor.untyped_storage()
        known = self._live.get(block._cdata)
        if known is not None:
            nbytes = block.nbytes()
            if nbytes != known.sizes[-1][1]:
                known.sizes.append((self.row, nbytes))
            return known
        if tensor.is_meta:  # it has a shape but no memory
            return None
        storage = TrackedStorage(block, self._freed)
        storage.address, storage.born, storage.died = block._cdata, 0 if from_start else self.row, None
        storage.sizes = [(storage.born, block.nbytes())]
        storage.shape, storage.dtype, storage.saved, storage.holders = tensor.shape, tensor.dtype, [], 0
        # A leaf that was not made here and wants a gradient is somebody's weight, even without a module around it.
        storage.owner = "parameters" if made_by is None and tensor.is_leaf and tensor.requires_grad else ""
        storage.name, storage.made_by = "", made_by
        storage.line = line_now() if self._lines and made_by is not None else None
        storage.place = self.where[-1] if self.where else self.phase or ""
        self._live[block._cdata] = storage
        self.storages.append(storage)
        return storage

    def _freed(self, storage: TrackedStorage) -> None:
        """What a storage's weak reference calls when the memory goes."""
        if self._open:
            del self._live[storage.address]
            storage.died = self.row

    def pack(self, tensor: Tensor) -> Saved:
        """Called by autograd for each tensor that it saves. The alias shares its memory but not its place in the
        graph: a node that held its own output would be a reference cycle, and the memory would wait for the garbage
        collector."""
        self._aside = True
        alias = tensor.detach()
        self._aside = False
        if self.phase is None:
            self.begin("forward")
        storages = self.add(tensor)
        for storage in storages:
            if storage.holders == 0:
                made_here = storage.made_by is not None and not storage.saved
                storage.saved.append((storage.born if made_here else self.row, None))
            storage.holders += 1
        return Saved(alias, storages, self)

    @staticmethod
    def unpack(saved: Saved) -> Tensor:
        """Called by autograd when the backward pass needs the tensor.

        Raises:
            RuntimeError: the tensor was changed in place since. PyTorch checks this only where no hooks are set.
        """
        if saved.alias._version != saved.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a "
                f"{saved.alias.dtype} tensor of shape {tuple(saved.alias.shape)} is at version {saved.alias._version}, "
                f"expected version {saved.version}; compute into a new tensor instead"
            )
        return saved.alias

    def released(self, storage: TrackedStorage) -> None:
        """One node of the graph has let go of a storage."""
        storage.holders -= 1
        if self._open and storage.holders == 0:
            storage.saved[-1] = (storage.saved[-1][0], self.row)

    def begin(self, phase: str | None) -> None:
        """End the current phase and begin another (or none); the row between them shows what is alive there."""
        self._end_phase()
        self.row += 1
        self.phase = phase
        if phase is not None:
            self.phases.append(Phase(phase, self.row, self.row + 1))

    def _end_phase(self) -> None:
        if self.phase is not None:
            self.phases[-1].stop = self.row + 1

    def _notice_backward(self) -> None:
        """A backward pass announces itself by nothing but the autograd engine being at work."""
        running = torch._C._current_graph_task_id() != -1
        if running and self.phase != "backward":
            self.begin("backward")
        elif not running and self.phase == "backward":
            self.begin(None)

    def close(self) -> None:
        """Stop watching; what is alive now counts as alive at the end."""
        self._end_phase()
        self._open = False

    def resizes(self, original: Any) -> Any:
        """`UntypedStorage.resize_`, watched: it is not an operation, so no dispatch mode sees it."""

        @wraps(original)
        def resize_(block: torch.UntypedStorage, size: int) -> Any:
            result = original(block, size)
            known = self._live.get(block._cdata)
            if known is not None:
                known.sizes.append((self.row, block.nbytes()))
            return result

        return resize_
