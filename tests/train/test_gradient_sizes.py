"""Counts of what a cast would do equal what the cast does, at every scale; and all gradients that flow are seen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from course_lib.model.gpt import GPT
from course_lib.numerics import BF16, FP8_E4M3FN, FP8_E5M2, FP16, TORCH_DTYPES, FloatFormat
from course_lib.train.gradients import CastCounts, GradientSizes, record_flowing_gradients
from tests.predict.refused import refused
from tests.train.test_precision import SMALL, batch

FORMATS = (FP16, BF16, FP8_E5M2)


def gpt_gradients() -> Tensor:
    model = GPT(SMALL)
    model(*batch()).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def borders(fmt: FloatFormat) -> Tensor:
    """Every number where a fate ends, with its neighbours in fp32, and some on both sides."""
    half = fmt.min_subnormal / 2
    places = [half, fmt.min_subnormal, fmt.min_normal - half, fmt.min_normal, fmt.max]
    places.append(fmt.max + fmt.spacing(fmt.max).item() / 2)
    exact = torch.tensor([place for place in places if place < torch.finfo(torch.float32).max])
    near = [exact, torch.nextafter(exact, torch.tensor(0.0)), torch.nextafter(exact, torch.tensor(torch.inf))]
    numbers = torch.cat([*near, 2 * exact, 0.75 * exact])
    numbers = numbers[numbers.isfinite()]
    return torch.cat([numbers, -numbers])


def counted_by_casting(gradients: Tensor, fmt: FloatFormat, scale: float) -> CastCounts:
    cast = (gradients[gradients != 0] * scale).to(TORCH_DTYPES[fmt.name]).float().abs()
    flushed, overflowed, small = cast == 0, cast.isinf(), cast < fmt.min_normal
    normal = ~small & ~overflowed
    return CastCounts(*(int(mask.sum()) for mask in (flushed, small & ~flushed, normal, overflowed)))


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_counts_equal_the_cast_at_every_scale(fmt):
    gradients = gpt_gradients()
    sizes = GradientSizes([gradients])
    for power in range(-8, 41):
        assert sizes.cast(fmt, 2.0**power) == counted_by_casting(gradients, fmt, 2.0**power)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_counts_equal_the_cast_on_every_border(fmt):
    numbers = borders(fmt)
    counts = GradientSizes([numbers]).cast(fmt)
    assert counts == counted_by_casting(numbers, fmt, 1.0)
    assert counts.total == numbers.numel() and min(counts.flushed, counts.subnormal, counts.normal) > 0


def test_zeros_are_left_out_and_binades_are_half_open():
    sizes = GradientSizes([torch.tensor([0.0, -0.0, 1.0, 1.5]), torch.tensor([[-2.0], [0.25]])])
    assert sizes.binades() == {-2: 1, -1: 0, 0: 2, 1: 1}
    assert sizes.cast(FP16).total == 4


def test_binades_of_fp32s_own_subnormals():
    assert GradientSizes([torch.tensor([2.0**-149, 2.0**-126])]).binades()[-149] == 1


test_what_cannot_be_counted_is_refused = refused(
    *(
        (lambda numbers=numbers: GradientSizes([torch.tensor(numbers)]), "a histogram needs some, all finite")
        for numbers in ([0.0], [], [1.0, float("inf")], [float("nan")])
    ),
    (lambda: GradientSizes([torch.ones(1)]).cast(FP8_E4M3FN, 1.0), "has no inf"),
    (lambda: GradientSizes([torch.ones(1)]).cast(FP16, 3.0), "power of two"),
    (lambda: GradientSizes([torch.ones(1)]).cast(FP16, 0.0), "power of two"),
)


def test_the_gradients_of_every_layers_result_are_kept():
    first, last = nn.Linear(3, 4), nn.Linear(4, 1, bias=False)
    model = nn.Sequential(first, nn.ReLU(), last)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    with record_flowing_gradients(model) as flowing:
        model(x).sum().backward()
    mask = (first(x) > 0).float()
    assert [tuple(gradient.shape) for gradient in flowing] == [(5, 1), (5, 4), (5, 4)]
    assert torch.equal(flowing[0], torch.ones(5, 1))
    assert torch.equal(flowing[1], last.weight.detach().expand(5, 4))
    assert torch.equal(flowing[2], flowing[1] * mask)


def test_a_layer_that_returns_more_than_a_tensor_is_passed_over():
    model = nn.LSTM(3, 4)
    with record_flowing_gradients(model) as flowing:
        model(torch.ones(2, 3))[0].sum().backward()
    assert flowing == [] and model.weight_ih_l0.grad is not None


def test_recording_changes_no_gradient_and_leaves_no_hook():
    plain, watched = GPT(SMALL), GPT(SMALL)
    plain(*batch()).backward()
    with record_flowing_gradients(watched) as flowing:
        watched(*batch()).backward()
    seen = len(flowing)
    watched(*batch())
    assert seen == len(flowing) > 10
    assert not any(module._forward_hooks for module in watched.modules())
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))  # type: ignore[arg-type]
