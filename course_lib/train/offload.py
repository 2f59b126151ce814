"""Offload: what the backward pass will need waits in DRAM instead of in the GPU's memory.

Recompute pays for memory with FLOPs; offload pays with traffic. A saved tensor of n bytes crosses the link to the host
twice, so with a link of b bytes per second it costs 2n/b seconds (32 GB/s for PCIe 4.0 x16), and recomputing it costs
its FLOPs divided by the device's speed. Which is cheaper is a division, and lesson 03 does it. The copies here wait for
their turn in the same stream as the computation (vDNN, Rhu et al. 2016, overlaps the two).

`OffloadToDisk` does the same one storey further down, from whatever memory to files. It works without a GPU.

Lesson 03 opens this module; lesson 05 takes the second one.
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
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib.units import Bytes


class OffloadSavedTensors(saved_tensors_hooks):
    """Inside this context, tensors that autograd saves are kept in DRAM and return when the backward pass asks.

        with OffloadSavedTensors() as offloaded:
            loss = model(inputs, targets)
        loss.backward()                      # outside or inside, it does not matter

    On a CPU there is nothing to move: saved tensors stay what and where they are, no copy is made, no byte counted.
    Around `recompute`, it is the inputs of segments that move.

    Parameters are not moved, since they stay in the GPU's memory anyway (`torch.autograd.graph.save_on_cpu` copies
    those, too). A tensor saved by two operations is copied twice.

    Args:
        min_bytes: smaller tensors stay: each copy has a fixed cost of some 10 µs.
        pin_memory: copy into page-locked memory: about twice as fast, but the operating system cannot swap it out.

    Attributes:
        moved: bytes copied to DRAM so far; the backward pass brings the same number back.
    """

    def __init__(self, min_bytes: int = 0, pin_memory: bool = False) -> None:
        self.min_bytes, self.pin_memory = min_bytes, pin_memory
        self.moved = Bytes(0)
        super().__init__(self._to_dram, self._back)

    def __enter__(self) -> Self:  # type: ignore[override]
        super().__enter__()
        return self

    def _to_dram(self, tensor: Tensor) -> tuple[torch.device, Tensor]:
        nbytes = tensor.numel() * tensor.element_size()
        if tensor.device.type == "cpu" or nbytes < self.min_bytes or _is_parameter(tensor):
            return tensor.device, tensor
        # A saved view (an expanded or transposed tensor) is copied element by element, in its own shape.
        in_dram = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=self.pin_memory)
        in_dram.copy_(tensor)
        self.moved += nbytes
        return tensor.device, in_dram

    @staticmethod
    def _back(saved: tuple[torch.device, Tensor]) -> Tensor:
        device, tensor = saved
        return tensor.to(device)


class OffloadToDisk(saved_tensors_hooks):
    """Inside this context, tensors that autograd saves lie in files and are read when the backward pass asks.

        with OffloadToDisk() as offloaded:
            loss = model(inputs, targets)
        loss.backward()                      # outside or inside, it does not matter

    What DRAM is to a GPU, a disk is to DRAM. Around `recompute`, it is the inputs of segments that are written. A file
    goes with the graph that needed it, the folder with the last file. Parameters stay where they are. A tensor saved by
    two operations is written twice.

    Args:
        folder: where the files go; by default the system's folder for temporary files. That may be a RAM disk, in which
            case nothing is gained.
        min_bytes: smaller tensors stay: each file has a fixed cost of some 100 µs.
    """

    def __init__(self, folder: str | Path | None = None, min_bytes: int = 4096) -> None:
        self._folder = _Folder(folder)
        # Without a reference to this object: a circle would keep the folder until Python looks for circles.
        super().__init__(functools.partial(_write, self._folder, min_bytes), _read)

    def __enter__(self) -> Self:  # type: ignore[override]
        super().__enter__()
        return self

    @property
    def moved(self) -> Bytes:
        """Bytes written so far; the backward pass reads the same number back."""
        return self._folder.written


class _Folder:
    """A folder that is removed with the last object that knows it."""

    def __init__(self, parent: str | Path | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="saved_tensors_", dir=parent))
        self.numbers, self.written = itertools.count(), Bytes(0)
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class _File:
    """A tensor's bytes on disk."""

    def __init__(self, folder: _Folder, tensor: Tensor) -> None:
        self.folder, self.path = folder, folder.path / str(next(folder.numbers))
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        flat.view(torch.uint8).numpy().tofile(self.path)  # as bytes: numpy has no bfloat16
        weakref.finalize(self, self.path.unlink, missing_ok=True)


def _write(folder: _Folder, min_bytes: int, tensor: Tensor) -> Tensor | _File:
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes < min_bytes or _is_parameter(tensor):
        return tensor
    folder.written += nbytes
    return _File(folder, tensor)


def _read(saved: Tensor | _File) -> Tensor:
    if isinstance(saved, Tensor):
        return saved
    flat = torch.from_numpy(np.fromfile(saved.path, dtype=np.uint8)).view(saved.dtype)
    return flat.view(saved.shape).to(saved.device)


def _is_parameter(tensor: Tensor) -> bool:
    base = tensor if tensor._base is None else tensor._base
    return base.is_leaf and base.requires_grad
