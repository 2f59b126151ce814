"""Meters of one device: its two rates, FLOPs and bytes of operations, and shares of a step's time."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_pages.shared.cpu_time import cpu_seconds

CONTRACTIONS = ("mm", "bmm", "addmm", "baddbmm")
NORMALIZATIONS = "softmax", "norm", "nll_loss"
KINDS = "contraction", "normalization", "element-wise"
FLOPS_OF_A_NUMBER = {"normalization": 5, "element-wise": 1}
"""Our convention for all but contractions, which moves no conclusion: FLOPs a number of the largest tensor."""


class Work(NamedTuple):
    """FLOPs, bytes read and written, and calls."""

    flops: float
    bytes: int
    calls: int

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.bytes


def kind_of(name: str) -> str:
    """Class of an operation, by its name, as Ivanov et al. 2021 divide them."""
    if name in CONTRACTIONS:
        return "contraction"
    return "normalization" if any(part in name for part in NORMALIZATIONS) else "element-wise"


class Touched(TorchDispatchMode):
    """Counts, by class, the FLOPs and bytes of every operation in its block; views touch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.flops, self.bytes, self.calls = Counter[str](), Counter[str](), Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run and count one operation."""
        result = func(*args, **(kwargs or {}))
        read, written = ([x for x in tree_leaves(given) if isinstance(x, Tensor)] for given in (args, result))
        name, places = func._schema.name.removeprefix("aten::").strip("_"), {each.data_ptr() for each in read}
        is_view = not func._schema.is_mutable and bool(written) and all(each.data_ptr() in places for each in written)
        if is_view or not read + written or name.startswith(("empty", "detach", "view", "_unsafe_view")):
            return result
        kind = kind_of(name)
        sizes = [each.numel() for each in read + written]
        self.bytes[kind] += sum(each.numel() * each.element_size() for each in read + written)
        self.calls[kind] += 1
        if kind == "contraction":
            left, right = read[-2:]  # addmm and baddbmm have the summand before them
            self.flops[kind] += 2 * left.numel() * right.shape[-1]
        else:
            self.flops[kind] += FLOPS_OF_A_NUMBER[kind] * max(sizes)
        return result

    @property
    def work(self) -> dict[str, Work]:
        """Class → work."""
        return {kind: Work(self.flops[kind], self.bytes[kind], self.calls[kind]) for kind in KINDS if self.calls[kind]}


def touched(step: Callable[..., object], *given: object) -> dict[str, Work]:
    """Work of a call `step(*given)`, by class."""
    with Touched() as counted:
        step(*given)
    return counted.work


def rates(size: int = 768, numbers: int = 2**24) -> tuple[float, float]:
    """FLOPs and bytes a CPU second: of a product of square fp32 matrices, and of a copy that no cache holds."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    source, target = torch.ones(numbers), torch.empty(numbers)
    return 2 * size**3 / cpu_seconds(torch.mm, a, b), 2 * 4 * numbers / cpu_seconds(target.copy_, source)


def profiled(step: Callable[..., object], *given: object) -> dict[str, tuple[int, float]]:
    """Operation → calls and own CPU microseconds, by `torch.profiler`, the longest first."""
    step(*given)
    with _quiet(), profile(activities=[ProfilerActivity.CPU]) as record:
        step(*given)
    events = [each for each in record.key_averages() if each.key.startswith("aten::")]
    events.sort(key=lambda each: -each.self_cpu_time_total)
    return {each.key.removeprefix("aten::"): (each.count, each.self_cpu_time_total) for each in events}


def time_shares(step: Callable[..., object]) -> dict[str, float]:
    """Class → share of the time that operations take in a call; of each, the least of three profiles."""
    times: dict[str, float] = defaultdict(float)
    runs = [profiled(step) for _ in range(3)]
    for name in runs[0]:
        times[kind_of(name.strip("_"))] += min(run[name][1] for run in runs)
    return {kind: times[kind] / sum(times.values()) for kind in KINDS}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the error stream: the profiler's core writes lines of its own there, past Python."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
