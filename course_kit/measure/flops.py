"""Floating-point operations, counted while they happen.

    with measure.flops() as counted:
        train_step(model, optimizer, batch)

    counted.total          # Flops
    counted                # the same by operation, as a table

The count is PyTorch's: its `FlopCounterMode` knows matrix products, convolutions and attention kernels on a GPU, and
this module adds the CPU's attention kernel and grouped products. `MatrixProducts` is the witness: it shares no line
with that count, and fits on a page. Like the papers, neither counts element-wise work (softmax, norms, the optimizer).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from course_kit.tables import Tabular
from course_kit.units import Flops


class FlopRecord(Tabular):
    """The record of `measure.flops`, which fills as the block runs."""

    def __init__(self, counter: FlopCounterMode) -> None:
        self._counter = counter

    @property
    def total(self) -> Flops:
        """All floating-point operations so far; a multiply-add is two."""
        return Flops(self._counter.get_total_flops())

    @property
    def by_operation(self) -> dict[str, Flops]:
        """Operation name ("mm", "bmm", …) → operations, the most expensive first."""
        counts = self._counter.get_flop_counts().get("Global", {})
        named = {str(packet).split(".")[-1].strip("_"): Flops(count) for packet, count in counts.items()}
        return dict(sorted(named.items(), key=lambda item: -item[1]))

    def _table(self) -> tuple[list[str], list[list[str]]]:
        rows = [[name, f"{count}", f"{count / max(1, self.total):.1%}"] for name, count in self.by_operation.items()]
        return ["operation", "FLOPs", "share"], [*rows, ["total", f"{self.total}", ""]]


@contextmanager
def flops() -> Iterator[FlopRecord]:
    """Count the floating-point operations of everything inside the `with` block, forward and backward.

    A matrix product of (m, k) and (k, n) counts 2·m·k·n. Attention kernels count their matrix products in full, as if
    no score were masked (the convention of PyTorch and of the papers), forward 4·B·H·S²·K and backward 2.5 times that,
    because the fused backward computes the scores again.

    Yields:
        The record, with `.total` and `.by_operation`.
    """
    counter = FlopCounterMode(display=False, custom_mapping=_LEFT_OUT)
    counter.mod_tracker = _WithoutModules()  # type: ignore[assignment]
    with counter, started_under(getattr(counter, "mode", counter)):
        yield FlopRecord(counter)


@contextmanager
def started_under(mode: Any) -> Iterator[None]:
    """Let `mode` see the operations of Python threads that start in the block; a mode sees its own thread alone."""

    def start(thread: threading.Thread) -> None:
        thread.run = partial(_under, mode, thread.run)
        plain(thread)

    plain = threading.Thread.start
    with patch.object(threading.Thread, "start", start):
        yield


def _under(mode: TorchDispatchMode, run: Callable[[], None]) -> None:
    TorchDispatchMode.__enter__(mode)
    try:
        run()
    finally:
        TorchDispatchMode.__exit__(mode, None, None, None)


class InAllThreads(TorchDispatchMode):
    """A mode that also sees the threads that start in its block."""

    def __enter__(self) -> Any:
        self._threads = started_under(self)
        self._threads.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._threads.__exit__(*error)


class _WithoutModules(nullcontext[None]):
    """Stands in for the counter's tracker of modules, whose hooks fail where a backward calls `torch.autograd.grad`."""

    parents = frozenset({"Global"})


aten = torch.ops.aten
_LEFT_OUT: dict[Any, Any] = {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda *given, **_: sdpa_flop_count(*given[:3]),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *given, **_: sdpa_backward_flop_count(*given[:4]),
}
"""The kernels of `scaled_dot_product_attention` on a CPU, and of `grouped_mm`; FlopCounterMode passes shapes."""
if hasattr(aten, "_grouped_mm"):  # the groups share the rows, or in the weights' gradient the summed dim
    _LEFT_OUT[aten._grouped_mm] = lambda left, right, *_, **__: 2 * math.prod(left) * right[-1]


class MatrixProducts(InAllThreads):
    """Adds up `flops` of the matrix products in its `with` block, forward and backward, by a count of our own."""

    PRODUCTS = "mm", "bmm", "addmm", "baddbmm"
    ATTENTION: ClassVar = {  # the CPU's attention kernels → the place of query and keys, the number of products inside
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
            left, right = tensors[-2:]  # addmm and baddbmm have the summand before them
            self.flops += 2 * left.numel() * right.shape[-1]
        if operation == "_grouped_mm":  # the groups share the rows; the third tensor says where each ends
            self.flops += 2 * tensors[0].numel() * tensors[1].shape[-1]
        if operation in self.ATTENTION:
            place, products = self.ATTENTION[operation]
            query, keys = tensors[place : place + 2]
            self.flops += products * 2 * query.numel() * keys.shape[-2]
        return func(*args, **(kwargs or {}))
