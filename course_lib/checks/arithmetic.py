"""What an answer calculates with: how many additions and multiplications, and in which formats.

A sum that is meant to show what 16 bits can do must not slip into 32 on the way, and an elegant correction is none if
it takes ten times the work. So this *dispatch mode* looks at every operation of PyTorch that passes, counts those of
arithmetic by the numbers they make, and notes the formats that it sees and the operations that it cannot look into.

Lab 01 opens this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "div"})
"""One floating-point operation for each number of the result."""

FREE = frozenset(
    {
        *("alias", "as_strided", "detach", "expand", "permute", "reshape", "select", "slice", "split", "squeeze"),
        *("t", "transpose", "unbind", "unsqueeze", "view", "lift_fresh", "clone", "copy", "stack", "cat"),
        *("empty", "empty_like", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like"),
        *("new_empty", "new_full", "new_ones", "new_zeros", "fill", "zero", "index_select"),
        *("abs", "neg", "where", "eq", "ge", "gt", "le", "lt", "ne"),
    }
)
"""Operations that move, compare or flip signs, and round nothing."""


class Arithmetic(TorchDispatchMode):
    """Watches the operations inside a `with` block.

        with Arithmetic() as seen:
            total = a * b + c
        seen.flops, seen.dtypes, seen.others

    Attributes:
        flops: additions, subtractions, multiplications and divisions of floating-point numbers, elementwise ones.
        dtypes: the floating-point formats of every tensor that went into an operation or came out.
        others: the remaining operations on floating-point numbers by name, with how often each came. Whoever wants to
            know the formats *inside* a sum must not find `sum` here: torch adds up 16-bit numbers in 32 bits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.dtypes: set[torch.dtype] = set()
        self.others: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made, given = list(_floats([result])), list(_floats([*args, *(kwargs or {}).values()]))
        name = func._schema.name.removeprefix("aten::").strip("_").removesuffix("_copy")
        self.dtypes.update(tensor.dtype for tensor in made + given)
        if name in ARITHMETIC and made:
            # add and sub take a factor, alpha, which is one multiplication more.
            each = 1 + ((kwargs or {}).get("alpha", 1) not in (1, -1))
            self.flops += each * made[0].numel()
        elif name not in FREE and (made or given):
            self.others[_plain(name)] += 1
        return result


def _plain(name: str) -> str:
    """The name that a user knows the operation by."""
    return "item" if name == "local_scalar_dense" else name


def _floats(values: Iterable[Any]) -> Iterator[Tensor]:
    """The floating-point tensors among values and in lists of them."""
    for value in values:
        if isinstance(value, Tensor) and value.dtype.is_floating_point:
            yield value
        elif isinstance(value, list | tuple):
            yield from _floats(value)
