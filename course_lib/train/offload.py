"""Offload: what the backward pass will need waits in DRAM instead of in the GPU's memory.

Recompute pays for memory with FLOPs; offload pays with traffic. A saved tensor of n bytes crosses the link to the host
twice, so with a link of b bytes per second it costs 2n/b seconds (32 GB/s for PCIe 4.0 x16), and recomputing it costs
its FLOPs divided by the device's speed. Which is cheaper is a division, and lesson 03 does it. The copies here wait for
their turn in the same stream as the computation (vDNN, Rhu et al. 2016, overlaps the two).

Lesson 03 opens this module.
"""

from __future__ import annotations

from typing import Self

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


def _is_parameter(tensor: Tensor) -> bool:
    base = tensor if tensor._base is None else tensor._base
    return base.is_leaf and base.requires_grad
