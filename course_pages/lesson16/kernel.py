"""The page's `gated` as a Triton kernel: one pass over x and y. The kernel needs the package `triton` and a GPU."""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

triton: Any = import_module("triton") if find_spec("triton") else None
tl: Any = import_module("triton.language") if triton else None


def gated_tile(x_at, y_at, output_at, length, tile: tl.constexpr):
    """One program's tile of the output; x, y and the output are given by the addresses of their first numbers."""
    here = tl.program_id(0) * tile + tl.arange(0, tile)
    x, y = tl.load(x_at + here, here < length), tl.load(y_at + here, here < length)
    z = (x * 1.5 + 0.1) * tl.sigmoid(x)
    gelu = z * (1 + tl.erf(0.7071067811865476 * z)) / 2
    tanh = 2 * tl.sigmoid(2 * y) - 1
    tl.store(output_at + here, gelu + y * tanh, here < length)


compiled: Any = triton.jit(gated_tile) if triton else None


def gated(x: Tensor, y: Tensor, tile: int = 1024) -> Tensor:
    """The kernel's result for two contiguous fp32 tensors of one shape on a GPU; `tile` is a power of two."""
    output = torch.empty_like(x)
    compiled[(triton.cdiv(x.numel(), tile),)](x, y, output, x.numel(), tile)
    return output
