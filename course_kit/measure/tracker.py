"""Lifetimes of blocks of memory: the part of `measure.memory` that watches.

Every operation of PyTorch passes through a *dispatch mode*. This one looks at the storages (the blocks of memory under
the tensors) that come out of each operation and keeps weak references to them: a weak reference tells when its block
is freed, and never keeps the block alive. A second pair of eyes, `saved_tensors_hooks`, sees which tensors autograd
keeps for the backward pass. The owner of a block (a weight, a gradient, Adam's variance) is often known only later, so
the account is drawn up from the lifetimes at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course_kit.measure.storages import TrackedStorage, line_now, plain_tensors, tensors_in

_LIFT = torch.ops.aten.lift_fresh.default
_RESIZE = torch.UntypedStorage.resize_


@dataclass
class Phase:
    """A stretch of a step: "forward", "backward" or "optimizer step"."""

    name: str
    start: int  #: its first row of the timeline
    stop: int  #: the row after its last one


class Saved:
    """Stands in for a tensor that autograd saves: the tensor's alias, which tells the tracker when autograd lets go."""

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

    Args:
        lines: note for each storage the line that made it.
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
        """Keep PyTorch from switching its compiler off around every operation: that costs as much as the tracking."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, then look at its results."""
        if types and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor and its like: let it unwrap itself, then look at the plain tensors inside
        if self._aside or not self._open:
            return func(*args, **(kwargs or {}))
        running = in_backward()
        if running != (self.phase == "backward"):  # nothing announces the phase but the autograd engine at work
            self.begin("backward" if running else None)
        # A backward pass and an optimizer read tensors met before; torch.tensor([…]) reads its own new storage.
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
        """Make the storages under a tensor known: born in this row, or in row 0, at entry, if `from_start`."""
        storages = [self._add(plain, from_start=from_start) for plain in plain_tensors(tensor)]
        return [storage for storage in storages if storage is not None]

    def _add(self, tensor: Tensor, made_by: Any = None, from_start: bool = False) -> TrackedStorage | None:
        if tensor.layout is not torch.strided:
            raise ValueError(f"measure.memory counts dense tensors; this one is {tensor.layout}: take sparse=False")
        block = tensor.untyped_storage()
        known = self._live.get(block._cdata)
        if known is not None:
            nbytes = block.nbytes()
            if nbytes != known.sizes[-1][1]:
                known.sizes.append((self.row, nbytes))
            return known
        if tensor.is_meta:  # a shape without memory
            return None
        storage = TrackedStorage(block, self._freed)
        storage.address, storage.born, storage.died = block._cdata, 0 if from_start else self.row, None
        storage.sizes = [(storage.born, block.nbytes())]
        storage.shape, storage.dtype, storage.saved, storage.holders = tensor.shape, tensor.dtype, [], 0
        # A leaf that was not made here and wants a gradient is a weight, even without a module around it.
        storage.owner = "parameters" if made_by is None and tensor.is_leaf and tensor.requires_grad else ""
        storage.name, storage.made_by = "", made_by
        storage.line = line_now() if self._lines and made_by is not None else None
        storage.place = self.where[-1] if self.where else self.phase or ""
        self._live[block._cdata] = storage
        self.storages.append(storage)
        return storage

    def _freed(self, storage: TrackedStorage) -> None:
        """Note a death: a storage's weak reference calls this when the memory goes."""
        if self._open:
            del self._live[storage.address]
            storage.died = self.row

    def pack(self, tensor: Tensor) -> Saved:
        """Stand in for a tensor that autograd saves. The alias shares the tensor's memory but not its place in the
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
        """Hand the tensor to the backward pass.

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
        """Note that one node of the graph has let go of a storage."""
        storage.holders -= 1
        if self._open and storage.holders == 0:
            storage.saved[-1] = (storage.saved[-1][0], self.row)

    def begin(self, phase: str | None) -> None:
        """End the current phase and begin another (or none); the row between them shows the blocks alive there."""
        self._end_phase()
        self.row += 1
        self.phase = phase
        if phase is not None:
            self.phases.append(Phase(phase, self.row, self.row + 1))

    def _end_phase(self) -> None:
        if self.phase is not None:
            self.phases[-1].stop = self.row + 1

    def close(self) -> None:
        """Stop watching; storages that are alive now count as alive at the end."""
        self._end_phase()
        self._open = False

    def resize(self, block: torch.UntypedStorage, size: int) -> Any:
        """Stand in for `UntypedStorage.resize_`, which no dispatch mode sees: it is no operation."""
        result = _RESIZE(block, size)
        if (known := self._live.get(block._cdata)) is not None:
            known.sizes.append((self.row, block.nbytes()))
        return result


def in_backward() -> bool:
    """Whether the autograd engine is running a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1
