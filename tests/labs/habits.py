"""Which habits of training each answer has met when all checks are through: what is observed, not what is declared.

An answer that is called once, with kind numbers in new memory, may keep state by shape, overwrite a gradient that was
there, need tensors that lie in a row, or compute in 32 bits: it is right, and wrong in training. So each call of a
graded function that takes tensors is looked at, on ranks too: what the tensors hold, how they lie, what else is there.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import uuid
from collections import defaultdict
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_kit.checks.side_effects import _checksum

LARGE = 1000.0

HABITS = {
    "again": "two calls in one process with tensors of the same shapes and other values",
    "grad": "a leaf that has a gradient already",
    "across": "a tensor that lies across in memory",
    "unfilled": "fresh memory that holds NaN (course_kit.checks.habits.Unfilled)",
    "formats": "two floating-point dtypes",
    "large": "values above 1,000 and values below -1,000",
    "upstream": "the gradient that comes in, compared afterwards (course_kit.checks.habits.backward)",
}

_FORMAT = "the contract names the format"

LOOKED_AT: dict[str, dict[str, str]] = {f"lab{number:02}": {} for number in range(1, 18)} | {
    "lab01": {"b*_scales: formats": _FORMAT, "quantize_elements: formats": _FORMAT},
    "lab04": {
        **dict.fromkeys(["split: formats", "join: formats", "lean_step: formats", "train: formats"], _FORMAT),
        "train: large": "the net is the lab's own, and with weights in the thousands every tanh is saturated",
    },
    "lab05": {
        "Accumulator.__init__: grad": "no gradient is there before the first piece, and `step` leaves none",
        "Resumable.load_state_dict: across": "the state is the answer's own, and came through a file",
    },
    "lab07": {
        "*code: formats": _FORMAT,
        "compressed_mean: formats": _FORMAT,
        "trainable: *": "it asks who wants a gradient, and reads no number",
    },
    "lab12": {"add_up: large": "it adds up gradients and reads no weight; large ones saturate every tanh"},
    "lab13": {
        "route: large": "no probability is above 1",
        "Travel.backward: across": "operations of the answer itself make what comes in, in a row",
    },
}
"""Labs whose checks were gone through, and what no check of theirs does, as patterns of "function: habit", and why."""


@dataclasses.dataclass
class Seen:
    """What the calls of one function showed."""

    habits: set[str] = dataclasses.field(default_factory=set)
    fits: set[str] = dataclasses.field(default_factory=set)
    values: dict[str, set[str]] = dataclasses.field(default_factory=lambda: defaultdict(set))


def signs(name: str, given: dict[str, Any], life: str, frame: FrameType | None) -> dict[str, Any]:
    """What one call shows, for a line of a file."""
    tensors = [each for value in given.values() for each in _tensors(value)]
    floats = [each for each in tensors if each.is_floating_point()]
    leaves = [each for each in floats if each.requires_grad and each.is_leaf]
    extremes = [_extremes(each) for each in floats]
    return {
        "call": f"{life} {os.getpid()} {[tuple(each.shape) for each in tensors]}" if tensors else "",
        "values": str([_checksum(each) for each in tensors]),
        "floats": bool(floats),
        "leaves": bool(leaves),
        "wide": any(each.numel() > 1 for each in floats),
        "grad": any(each.grad is not None for each in leaves),
        "across": any(each.numel() > 1 and not each.is_contiguous() for each in floats),
        "unfilled": any(type(mode).__name__ == "Unfilled" for mode in _modes()),
        "formats": sorted({str(each.dtype) for each in floats}),
        "above": any(most > LARGE for _, most in extremes),
        "below": any(least < -LARGE for least, _ in extremes),
        "upstream": name.endswith(".backward") and _is_under(frame, "backward", "habits.py"),
    }


class Met:
    """The habits that all functions of a lab have met."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = defaultdict(Seen)

    def add(self, name: str, shown: dict[str, Any]) -> None:
        """Take one call's signs."""
        seen = self._seen[name]
        if shown["call"]:
            seen.fits.add("again")
            seen.values[shown["call"]].add(shown["values"])
        if shown["floats"]:
            seen.fits |= {"unfilled", "formats", "large"}
        fits = {"grad": shown["leaves"], "across": shown["wide"], "upstream": name.endswith(".backward")}
        seen.fits |= {habit for habit, does in fits.items() if does}
        seen.habits |= {habit for habit in ("grad", "across", "unfilled", "upstream") if shown[habit]}
        seen.values["formats"] |= set(shown["formats"])
        seen.values["large"] |= {side for side in ("above", "below") if shown[side]}

    def missing(self) -> list[str]:
        """Each "function: habit" that fits and that no check has."""
        found = []
        for name, seen in self._seen.items():
            met = seen.habits | {habit for habit in ("formats", "large") if len(seen.values[habit]) > 1}
            if any(len(values) > 1 for call, values in seen.values.items() if call not in ("formats", "large")):
                met.add("again")
            found += [f"{name}: {habit}" for habit in HABITS if habit in seen.fits - met]
        return found


def new_life() -> str:
    """A name for what lives as long as a process's copy of an answer."""
    return uuid.uuid4().hex[:12]


def _tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, dict | list | tuple) and depth < 3:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type) and depth < 3:
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name, None), depth + 1)


def _extremes(tensor: Tensor) -> tuple[float, float]:
    """The least and the largest finite value, read without an operation of PyTorch."""
    kinds = {torch.float64: np.float64, torch.float32: np.float32, torch.float16: np.float16}
    if tensor.dtype not in kinds or tensor.device.type != "cpu" or not tensor.numel() or tensor.is_sparse:
        return 0.0, 0.0
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if span > 2**18:  # what is this large is weighed
        return 0.0, 0.0
    memory = (ctypes.c_char * (span * tensor.itemsize)).from_address(tensor.data_ptr())
    numbers = np.frombuffer(memoryview(memory).cast("B"), kinds[tensor.dtype])
    finite = numbers[np.isfinite(numbers)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)


def _modes() -> list[Any]:
    return list(torch.overrides._get_current_function_mode_stack())


def _is_under(frame: FrameType | None, function: str, file: str) -> bool:
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(f"checks/{file}"):
            return True
        frame = frame.f_back
    return False
