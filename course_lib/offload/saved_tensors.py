"""Offload of saved tensors: they wait for the backward pass in files instead of in memory.

Recompute pays for memory with FLOPs; offload pays with traffic: a saved tensor crosses to the disk and back. PyTorch's
own `torch.autograd.graph.save_on_cpu` does the same between a GPU's memory and DRAM.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_kit.units import Bytes


class OffloadToDisk(saved_tensors_hooks):
    """A context in which tensors that autograd saves are written to files, for the backward pass to read.

        with OffloadToDisk() as offloaded:
            loss = model(inputs, targets)
        loss.backward()                      # outside or inside, it does not matter

    Around `recompute`, the inputs of segments are written. A tensor saved by two operations is written twice.
    Parameters stay in memory. A written tensor may be changed in place; for one that stays, the backward pass then
    raises a ValueError. A file is deleted with the graph that needs it, the folder with the last file.

    Args:
        folder: the folder for the files; None for the system's temporary folder, which may be a RAM disk that gains
            nothing.
        min_bytes: smaller tensors stay in memory, since each file has a fixed cost of some 100 µs.
    """

    def __init__(self, folder: str | Path | None = None, min_bytes: int = 4096) -> None:
        self._folder = _Folder(folder)
        # no method of this object: a circle would keep the folder until Python's garbage collector runs
        super().__init__(functools.partial(_write, self._folder, min_bytes), lambda saved: saved.back())

    def __enter__(self) -> Self:  # type: ignore[override]
        super().__enter__()
        return self

    @property
    def moved(self) -> Bytes:
        """Bytes written so far; the backward pass reads as many."""
        return self._folder.written


class _Kept:
    """A saved tensor that stays in memory. Behind hooks, autograd does not check for changes in place: `back` does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()  # a result's graph has the node that saves the result: a circle
        self.version = tensor._version

    def back(self) -> Tensor:
        """The tensor."""
        if self.tensor._version != self.version:
            raise ValueError(
                f"a tensor of shape {tuple(self.tensor.shape)} that the backward pass needs was changed in place after "
                "it was saved: go backward first, or compute a new tensor (x = x + 1, not x += 1)"
            )
        return self.tensor


class _Folder:
    """A folder that is removed with the last reference to this object."""

    def __init__(self, parent: str | Path | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="saved_tensors_", dir=parent))
        self.numbers, self.written = itertools.count(), Bytes(0)
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class _File:
    """A saved tensor's bytes on disk."""

    def __init__(self, folder: _Folder, tensor: Tensor) -> None:
        self.folder, self.path = folder, folder.path / str(next(folder.numbers))
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        flat = tensor.detach().cpu().resolve_conj().contiguous().reshape(-1)
        flat.view(torch.uint8).numpy().tofile(self.path)  # as bytes: numpy has no bfloat16
        weakref.finalize(self, self.path.unlink, missing_ok=True)

    def back(self) -> Tensor:
        """The tensor, on its device again."""
        flat = torch.from_numpy(np.fromfile(self.path, dtype=np.uint8)).view(self.dtype)
        return flat.view(self.shape).to(self.device)


def _write(folder: _Folder, min_bytes: int, tensor: Tensor) -> _Kept | _File:
    """Write a tensor; keep in memory a sparse, small or empty one, and (a view of) a parameter, frozen or not."""
    base = tensor if tensor._base is None else tensor._base
    if tensor.layout != torch.strided or tensor.nbytes < max(min_bytes, 1) or isinstance(base, nn.Parameter):
        return _Kept(tensor)
    folder.written += tensor.nbytes
    return _File(folder, tensor)
