"""Checks of lesson 16's turns: tiles of rows, an online softmax, its gradient by tiles, and a draft."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from course_kit import measure
from course_kit.notebook.your_turn import Function

EXERCISES = 100 * 5 / 4 * 3350e9 / 989.4e12, 64 * 65 / 2 / 64**2, sum(0.8**n for n in range(5)) / (1 + 4 * 0.1)
"""Answers to the exercises: percent of an H100's peak, share of the tiles, a speed-up."""


def check_in_tiles(in_tiles: Function) -> None:
    """Values for lengths that tiles divide and do not, all tiles, dtype, and bytes: one output and no second copy."""
    for length, rows, dtype in ((64, 16, torch.float32), (70, 16, torch.float64), (5, 8, torch.float32)):
        x, y = torch.randn(2, length, 32, generator=torch.Generator().manual_seed(length)).to(dtype)
        due, before = F.gelu(x * 2) + y, (x.clone(), y.clone())
        asked: list[int] = []

        def step(x: Tensor, y: Tensor, asked: list[int] = asked) -> Tensor:
            asked.append(len(x))
            return F.gelu(x * 2) + y

        told = f"{length} rows, {rows} at a time"
        came = in_tiles(step, x, y, rows)
        assert isinstance(came, Tensor) and came.shape == x.shape, f"{told}: a tensor of the shape of x should come"
        assert came.dtype == dtype, f"{told}: {came.dtype} came for x of {dtype}"
        assert max(asked, default=0) <= rows, f"{told}: step was given {max(asked)} rows at once"
        assert sum(asked) == length, f"{told}: step saw {sum(asked)} rows in all"
        due_calls = -(-length // rows)
        assert len(asked) == due_calls, f"{told}: step was called {len(asked)} times, and {due_calls} tiles are due"
        full = sorted(asked)[1:] == [rows] * (due_calls - 1)
        assert full, f"{told}: step saw tiles of {asked} rows, and only one may be shorter"
        assert torch.equal(x, before[0]) and torch.equal(y, before[1]), f"{told}: x and y should stay as they are"
        assert torch.equal(came, due), f"{told}: rows came with other values, or in another order"
    x, y = torch.randn(2, 1024, 32)
    with measure.memory(inputs=(x, y)) as record:
        in_tiles(lambda x, y: F.gelu(x * 2) + y, x, y, 16)
    beside = (record.peak.total - record.before.total) / (4 * x.numel())
    assert beside < 1.5, f"bytes at the peak: {beside:.2f} times those of the output, so results are held twice"


def check_add_tile(add_tile: Function) -> None:
    """State after every tile and at the end: rising, falling and huge scores, one tile and many, several rows."""
    cases = {"rising": [1.0, 3.0, 2.0, 5.0, 4.0, 6.0], "falling": [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]}
    cases["huge"] = [1000.0, 0.0, -1000.0, 1500.0, 1499.0, 1.0]
    cases["small"] = [-900.0, -901.0, -950.0, -899.0, -902.0, -903.0]
    for name, row in cases.items():
        scores = torch.tensor([row, row[::-1]], dtype=torch.float64)
        values = torch.linspace(-1, 1, 18, dtype=torch.float64).view(6, 3)
        for step in (1, 2, 4, 6):
            top, total = torch.full((2,), -math.inf, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
            mixed = torch.zeros(2, 3, dtype=torch.float64)
            for end in range(step, 6 + step, step):
                here = slice(end - step, end)
                top, total, mixed = add_tile(top, total, mixed, scores[:, here].clone(), values[here].clone())
                told, seen = f"{name} scores, {step} at a time, after {min(end, 6)}", scores[:, :end]
                due = seen.amax(-1)
                fit = [each.shape for each in (top, total, mixed)] == [(2,), (2,), (2, 3)]
                assert fit, f"{told}: top and total are a number a row, mixed a number a row and feature, in this order"
                assert {each.dtype for each in (top, total, mixed)} == {scores.dtype}, f"{told}: scores are float64"
                assert torch.equal(top, due), f"{told}: top should be the largest score so far"
                weights = (seen - due[:, None]).exp()
                assert total.isfinite().all() and mixed.isfinite().all(), f"{told}: {_list(total)} is no sum of weights"
                assert torch.allclose(total, weights.sum(-1), 1e-12), (
                    f"{told}: total came as {_list(total)}; every weight in it should be measured from the same top"
                )
                close = torch.allclose(mixed, weights @ values[:end], 1e-12)
                assert close, f"{told}: mixed came wrong, and total right; both should be scaled alike"


def check_d_scores(d_scores: Function) -> None:
    """The gradient of a tile of scores, against autograd on the whole row: all keys, and three parts of them."""
    generator = torch.Generator().manual_seed(0)
    scores, d_output = torch.randn(4, 6, generator=generator), torch.randn(4, 3, generator=generator)
    scores, d_output = scores.double().requires_grad_(), d_output.double()
    values = torch.randn(6, 3, generator=generator).double()
    weights = scores.softmax(-1)
    output = weights @ values
    (due,) = torch.autograd.grad(output, scores, d_output)
    for here in (slice(0, 6), slice(0, 2), slice(2, 6), slice(5, 6)):
        told = f"keys {here.start} to {here.stop - 1} of 6"
        tile = weights[:, here].detach(), values[here], output.detach(), d_output
        given = [each.clone() for each in tile]
        came = d_scores(*given)
        same = all(map(torch.equal, given, tile))
        assert same, f"{told}: an argument changed; dV needs them as they were, and so do other tiles"
        fits = isinstance(came, Tensor) and came.shape == due[:, here].shape
        assert fits, f"{told}: as many rows and keys should come"
        close = torch.allclose(came, due[:, here], 1e-10)
        assert close or here != slice(0, 6), f"{told}: not autograd's gradient, although the tile has all of the row"
        assert close, f"{told}: not autograd's gradient; a row's D belongs to all of its keys, in this tile or not"


def check_kept(kept: Function) -> None:
    """Tokens that a pass adds: all right, none, and wrong ones with right ones behind them."""
    cases = [([5, 6, 7], [5, 6, 7, 8]), ([5, 6, 7], [1, 6, 7, 8]), ([5, 6, 7], [5, 1, 7, 8]), ([5, 6, 7], [5, 6, 1, 8])]
    cases += [([4], [4, 9]), ([4], [3, 9]), ([2, 2, 2, 2], [2, 2, 3, 2, 1])]
    for drafted, best in cases:
        came = [int(token) for token in kept(list(drafted), list(best))]
        told = f"drafted {drafted}, and the large model would have said {best}: {came} came"
        assert 1 <= len(came) <= len(best), f"{told}; a pass adds at least one token, and at most one more than drafted"
        right = next((i for i, (one, other) in enumerate(zip(drafted, best)) if one != other), len(drafted))
        assert len(came) <= right + 1, f"{told}; behind a wrong token the large model has read another text"
        assert len(came) == right + 1, f"{told}; there is more that the large model agrees with, or says itself"
        assert came == best[: right + 1], f"{told}; these are not the large model's tokens"


def _list(numbers: Tensor) -> list[float]:
    return [float(f"{number:.4g}") for number in numbers.tolist()]
