"""Bytes that autograd keeps for the backward pass, storage by storage."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from course_kit.units import Bytes


def kept_by(module: nn.Module, *inputs: Tensor) -> list[Bytes]:
    """Bytes of each storage that autograd keeps when the module reads `inputs`, without parameters, in order."""
    kept, owned = {}, {p.untyped_storage().data_ptr() for p in module.parameters()}

    def at_the_door(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(at_the_door, lambda tensor: tensor):
        module(*inputs)
    return [Bytes(tensor.untyped_storage().nbytes()) for address, tensor in kept.items() if address not in owned]
