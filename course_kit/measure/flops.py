"""Floating-point operations, counted while they happen.

    with measure.flops() as counted:
        train_step(model, optimizer, batch)

    counted.total          # Flops
    counted                # the same by operation, as a table

The count is PyTorch's: its `FlopCounterMode` knows matrix products, convolutions and attention kernels on a GPU; the
attention kernel that runs on a CPU and grouped products it leaves out, and this module adds them. `MatrixProducts` is
the witness beside it.
Like the papers, neither counts element-wise work (softmax, norms, GELU, the optimizer).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from course_kit.tables import as_html, as_text
from course_kit.units import Flops


class FlopRecord:
    """What `measure.flops` yields; it fills as the block runs."""

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

    def __repr__(self) -> str:
        return as_text(*self._table())

    def _repr_html_(self) -> str:
        return as_html(*self._table())


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
    with counter:
        yield FlopRecord(counter)


class _WithoutModules:
    """In place of the counter's tracker of modules, whose hooks fail where a backward calls `torch.autograd.grad`."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None: ...


def _attention(query: Any, key: Any, value: Any, *_args: Any, out_shape: Any = None, **_kwargs: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(
    grad: Any, query: Any, key: Any, value: Any, *_args: Any, out_shape: Any = None, **_kwargs: Any
) -> int:
    return sdpa_backward_flop_count(grad, query, key, value)


def _grouped(left: Any, right: Any, *_args: Any, out_shape: Any = None, **_kwargs: Any) -> int:
    return 2 * math.prod(left) * right[-1]  # the groups share the rows, or in the weights' gradient what is summed over


_LEFT_OUT: dict[Any, Any] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""The kernels behind `scaled_dot_product_attention` on a CPU, and the one behind `grouped_mm`; FlopCounterMode calls
these with shapes."""
if hasattr(torch.ops.aten, "_grouped_mm"):
    _LEFT_OUT[torch.ops.aten._grouped_mm] = _grouped
