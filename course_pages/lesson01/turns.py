"""Checks of lesson 01's turns: patterns read, numbers rounded, a debt remembered, a scale for each row."""

from __future__ import annotations

import math

import torch

from course_kit.notebook.your_turn import Function
from course_lib.numerics import FP16, FloatFormat

FORMATS = ((torch.bfloat16, 8, 7), (torch.float16, 5, 10))
"""PyTorch's dtypes, each with its bits of exponent and of fraction."""

EXERCISES = (
    next(n for n in range(1, 1000) if f"{1.86 * n:.1f}" == "316.2"),
    next(n for n in range(1, 70_000) if FP16.round(float(n)).item() != n),
    next(E for E in range(2, 7) if FloatFormat(E, 7 - E).round(1e-6).item() > 0),
)
"""Answers to the exercises: billions of parameters; a whole number that fp16 does not have; exponent bits of 8."""


def check_decode(function: Function) -> None:
    """Every pattern of two formats, as PyTorch reads it; the sign of zero counts."""
    for dtype, E, F in FORMATS:
        theirs = torch.arange(2**16).to(torch.int16).view(dtype).tolist()
        for pattern, due in enumerate(theirs):
            value = function(pattern, E, F)
            same = value == due and math.copysign(1, value) == math.copysign(1, due)
            assert same or (math.isnan(due) and value != value), (  # nan is not equal to itself
                f"in {dtype} the pattern {pattern:016b} is {due}, and yours says {value}"
            )


def check_round(function: Function) -> None:
    """Ties, both signs, a carry, subnormal numbers and zero, as PyTorch's casts round them."""
    tried = (
        0.1, -0.1, 0.0, 257.0, 258.0, 259.0, -257.0, 1e-7, 5e-8, -3 * 2.0**-25, 1 + 2.0**-8, 1 + 3 * 2.0**-8,
        1 + 2.0**-11, 255.9,
    )  # fmt: skip
    for dtype, E, F in FORMATS:
        for x in tried:
            due, value = torch.tensor(x).to(dtype).item(), function(x, E, F)
            assert value == due, f"in {dtype} {x} becomes {due}, and yours says {value}"


def ten_thousand(function: Function, update: float = 1e-4, start: float = 1.0) -> list[float]:
    """Walk of a bf16 weight that ten thousand equal updates move, each by `function(weight, owed, update)`."""
    step, walk = torch.tensor(update, dtype=torch.bfloat16), [start]
    weight, owed = torch.tensor([start, 0.0], dtype=torch.bfloat16)
    for _ in range(10_000):
        weight, owed = function(weight, owed, step.clone())
        walk.append(weight.item())
    assert weight.dtype == owed.dtype == torch.bfloat16, (
        f"both should stay in bf16, but are {weight.dtype} and {owed.dtype}"
    )
    return walk


def check_kahan(function: Function) -> None:
    """The end of ten thousand updates, up and down; what is owed has the sign of what did not arrive."""
    for update, due in ((1e-4, 2.0), (-2e-5, 0.8)):
        end = ten_thousand(function, update)[-1]
        weight, owed = torch.tensor([1.0, 0.0], dtype=torch.bfloat16)
        for _ in range(2):
            weight, owed = function(weight, owed, torch.tensor(update, dtype=torch.bfloat16))
        assert abs(end / due - 1) < 0.02, (
            f"10,000 updates of {update} should carry 1 to about {due}, but it ends at {end}; after two of them the "
            f"weight is {weight.item():.4g} and is owed {owed.item():.4g}"
        )
    weight, owed = function(*torch.tensor([1.0, 0.0, 0.50390625], dtype=torch.bfloat16))
    assert weight == 1.5 and owed == 0.00390625, (
        f"1 and an update of 0.5039 are 1.5, which is owed 0.003906, but yours are {weight:.4g} and {owed:.4g}"
    )


def check_rows(function: Function) -> None:
    """Values on each row's own grid, for two numbers of bits and rows that differ in size."""
    x = torch.tensor([[1.0, -0.5, 0.24, 0.0], [350.0, -700.0, 49.0, 51.0]])
    for bits in (4, 8):
        largest = 2 ** (bits - 1) - 1
        found = function(x.clone(), bits)
        assert isinstance(found, torch.Tensor) and found.shape == x.shape, "it should be a tensor of the shape of x"
        for row, (mine, given) in enumerate(zip(found, x, strict=True)):
            scale = given.abs().max() / largest
            counts = mine / scale
            assert (counts - counts.round()).abs().max() < 1e-3, (
                f"with {bits} bits, row {row} of {x.tolist()} should lie on its own {2 * largest + 1} values; yours is "
                f"{mine.tolist()}"
            )
            assert (mine - given).abs().max() <= scale / 2 * 1.001, (
                f"with {bits} bits, a number of row {row} is more than half a step from where it was: {mine.tolist()}"
            )
