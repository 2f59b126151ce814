"""int8, int4 and 1-bit grids: against torch's own fake quantization, and against what a grid must do."""

from __future__ import annotations

import math

import pytest
import torch

from course_lib.numerics.quantize import quantize, quantize_sign, rms_error, signal_to_noise_db
from tests.predict.refused import refused

GRIDS = [(bits, dim) for bits in (8, 4) for dim in (None, 0, 1, -1)]


def uneven_matrix(rows: int = 12, columns: int = 37) -> torch.Tensor:
    """Rows of very different size, as channels of a weight matrix are."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, columns, generator=generator) * 2.0 ** torch.arange(rows)[:, None]


@pytest.mark.parametrize(("bits", "dim"), GRIDS)
def test_it_is_torchs_fake_quantization_with_an_error_of_half_a_step_and_zero_stays_zero(bits, dim):
    x = uneven_matrix()
    x[3, 5] = 0.0
    ours = quantize(x, bits, channel_dim=dim)
    end, scale = 2 ** (bits - 1) - 1, ours.scale.flatten()
    if dim is None:
        theirs = torch.fake_quantize_per_tensor_affine(x, scale.item(), 0, -end, end)
    else:
        zero_points = torch.zeros_like(scale, dtype=torch.int32)
        theirs = torch.fake_quantize_per_channel_affine(x, scale, zero_points, dim % 2, -end, end)
    torch.testing.assert_close(ours.dequantize(), theirs, rtol=1e-6, atol=0)
    assert bool(((ours.dequantize() - x).abs() <= ours.scale * (0.5 + 1e-4)).all()) and ours.dequantize()[3, 5] == 0


def test_channels_keep_small_rows_alive():
    x = uneven_matrix()
    whole, rows = (quantize(x, 4, channel_dim=dim).dequantize() for dim in (None, 0))
    assert bool((whole[:4] == 0).all())
    assert signal_to_noise_db(x[:4], rows[:4]) > 12


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0])
def test_constant_tensors(value):
    x = torch.full((5,), value)
    torch.testing.assert_close(quantize(x, 8).dequantize(), x)


def test_numbers_too_small_for_a_scale_become_0_and_those_with_a_coarse_one_its_end():
    smallest = 2.0**-149  # of the subnormal numbers in fp32
    values = quantize(torch.tensor([[60.0, 0.0], [190.0, -190.0]]) * smallest, 8, channel_dim=0).values
    assert values.tolist() == [[0, 0], [127, -127]]


@pytest.mark.parametrize("dim", [0, -1])
def test_each_element_of_a_vector_is_a_channel(dim):
    x = torch.tensor([1.0, -100.0, 0.0, 1e-6])
    grid, signs = quantize(x, 4, channel_dim=dim), quantize_sign(x, channel_dim=dim)
    assert grid.scale.shape == signs.scale.shape == x.shape
    torch.testing.assert_close(grid.dequantize(), x)
    assert torch.equal(signs.dequantize(), x)


def test_large_numbers_have_a_mean():
    assert quantize_sign(torch.full((4,), 3e38)).scale == torch.tensor(3e38)
    assert quantize_sign(torch.full((4, 2), 3e38), channel_dim=1).scale.tolist() == torch.full((1, 2), 3e38).tolist()


@pytest.mark.parametrize("shape", [(1,), (8,), (9,), (4, 6), ()], ids=str)
def test_signs_come_back(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    signs = quantize_sign(x)
    torch.testing.assert_close(signs.dequantize(), x.abs().mean() * torch.where(x < 0, -1.0, 1.0))


def test_the_mean_magnitude_is_the_best_scale():
    x = uneven_matrix()
    signs = quantize_sign(x, channel_dim=0)
    best = rms_error(x, signs.dequantize())
    assert all(rms_error(x, signs.dequantize() * factor) > best for factor in (0.95, 1.05))


def test_error_measures():
    x, y = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.0])
    assert rms_error(x, y) == pytest.approx(math.sqrt(0.5))
    assert signal_to_noise_db(x, y) == pytest.approx(10 * math.log10(25 / 1))
    assert signal_to_noise_db(x, x) == math.inf
    assert signal_to_noise_db(torch.zeros(2), y) == -math.inf


test_mistakes_are_explained = pytest.mark.usefixtures("unchecked_shapes")(
    refused(
        (lambda: quantize(torch.ones(2), 5), "8 or 4 bits"),
        (lambda: quantize(torch.ones(2, 2), channel_dim=2), "give 0 to 1"),
        (lambda: quantize(torch.tensor([1.0, torch.nan])), "holds inf, nan or"),
        (lambda: quantize(torch.tensor([1e300], dtype=torch.float64)), "what fp32 cannot hold"),
        (lambda: quantize_sign(torch.tensor([1e300], dtype=torch.float64)), "what fp32 cannot hold"),
        (lambda: quantize(torch.ones(0)), "needs floats"),
        (lambda: quantize_sign(torch.arange(3)), "needs floats"),
    )
)
