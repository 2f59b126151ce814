"""A second witness of floating-point operations: matrix products, counted by ourselves as PyTorch runs them.

`measure.flops` takes PyTorch's count. This one shares no line with it, and fits on a page.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course_kit.units import Flops


class MatrixProducts(TorchDispatchMode):
    """Adds up `flops` of the matrix products in its `with` block, forward and backward, whoever asks for them."""

    PRODUCTS = "mm", "bmm", "addmm", "baddbmm"
    ATTENTION: ClassVar = {  # the CPU's attention kernels → the place of query and keys, how many products are inside
        "_scaled_dot_product_flash_attention_for_cpu": (0, 2),
        "_scaled_dot_product_flash_attention_for_cpu_backward": (1, 5),
    }

    def __init__(self) -> None:
        super().__init__()
        self.flops = Flops(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See one operation of PyTorch pass by. (m × k) times (k × n) is 2·m·k·n, of `batch` pairs each."""
        operation = func._schema.name.removeprefix("aten::")
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if operation in self.PRODUCTS:
            left, right = tensors[-2:]  # before them may stand what the product is added to
            self.flops += 2 * left.numel() * right.shape[-1]
        if operation == "_grouped_mm":  # the groups share the rows; behind the two stands where each group ends
            self.flops += 2 * tensors[0].numel() * tensors[1].shape[-1]
        if operation in self.ATTENTION:
            place, products = self.ATTENTION[operation]
            query, keys = tensors[place : place + 2]
            self.flops += products * 2 * query.numel() * keys.shape[-2]
        return func(*args, **(kwargs or {}))
