"""The grid arithmetic below FloatFormat."""

from __future__ import annotations

import pytest
import torch

from course_lib.numerics import rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_binade_is_the_power_of_two_below(dtype):
    x = torch.tensor([1.0, 1.999, 2.0, -3.0, 0.75, 0.0, -0.0, 1e-20], dtype=dtype)
    assert rounding.binade(x).tolist() == [1, 1, 2, 2, 0.5, 0, 0, 2.0**-67]
    assert rounding.binade(torch.tensor([torch.inf, -torch.nan], dtype=dtype)).tolist() == [torch.inf, torch.inf]


def test_binade_of_a_subnormal_is_zero():
    assert rounding.binade(torch.tensor([1e-40])).item() == 0.0


def test_nearest_sends_ties_to_the_even_multiple():
    x = torch.tensor([0.5, 1.5, 2.5, -2.5, 2.51])
    assert rounding.round_nearest(x, torch.tensor(1.0)).tolist() == [0, 2, 2, -2, 3]


def test_stochastic_draws_enough_bits_for_tiny_fractions():
    """With 24 random bits, 1e-10 of a step would be rounded up twice in 2^25 draws; it should be once in 300 times."""
    x = torch.full((2**25,), 1e-10)
    assert rounding.round_stochastic(x, torch.tensor(1.0), torch.Generator().manual_seed(1)).count_nonzero() == 0


@pytest.mark.parametrize("size", [0, 1, rounding.PIECE - 1, rounding.PIECE, rounding.PIECE + 1, 3 * rounding.PIECE + 5])
def test_pieces_cover_everything_once(size):
    numbers = torch.arange(size)
    pieces = [a for a, b in rounding.in_pieces(numbers, numbers) if torch.equal(a, b)]
    assert torch.equal(torch.cat(pieces), numbers)
