"""Five steps with the result of `quick`, each with one flaw that a profile shows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROWS, WIDTH = 256, 512


def inputs() -> tuple[Tensor, Tensor]:
    """Rows, and a matrix."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, WIDTH, generator=generator), torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5


def quick(x: Tensor, weight: Tensor) -> Tensor:
    """Mean square of a linear layer's GELU, of three passes over it."""
    for _ in range(3):
        x = torch.nn.functional.gelu(x @ weight)
    return x.square().mean()


def a(x: Tensor, weight: Tensor) -> Tensor:
    """Multiplies row by row."""
    for _ in range(3):
        x = torch.nn.functional.gelu(torch.stack([row @ weight for row in x]))
    return x.square().mean()


def b(x: Tensor, weight: Tensor) -> Tensor:
    """Asks of every row's first number whether it is finite."""
    for _ in range(3):
        x = torch.nn.functional.gelu(x @ weight)
        if not all(math.isfinite(first.item()) for first in x[:, 0]):
            raise ValueError("not finite")
    return x.square().mean()


def c(x: Tensor, weight: Tensor) -> Tensor:
    """Multiplies by a matrix of double precision, and everything after it is double, too."""
    scale = torch.ones(WIDTH, dtype=torch.float64)
    for _ in range(3):
        x = torch.nn.functional.gelu((x * scale) @ weight.to(scale.dtype))
    return x.square().mean()


def d(x: Tensor, weight: Tensor) -> Tensor:
    """Turns the matrix in memory before each product, and back."""
    for _ in range(3):
        for _ in range(4):
            weight = weight.T.contiguous()
        x = torch.nn.functional.gelu(x @ weight)
    return x.square().mean()


def e(x: Tensor, weight: Tensor) -> Tensor:
    """Writes GELU's polynomial and its tanh as a dozen small operations."""
    for _ in range(3):
        x = x @ weight
        inner = 0.7978845608 * (x + 0.044715 * x * x * x)
        grown, shrunk = inner.exp(), (-inner).exp()
        x = 0.5 * x * (1 + (grown - shrunk) / (grown + shrunk))
    return x.square().mean()


SLOW = (a, b, c, d, e)
