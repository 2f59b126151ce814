"""Whole runs: operations, days and utilization, and the noise scale found again from two batch sizes."""

import pytest
import torch

from course_kit.units import Flops, Seconds
from course_lib import predict
from course_lib.predict.scaling import NoiseScale
from tests.predict.refused import refused


def test_six_and_eight() -> None:
    assert predict.training_flops(10, 7) == Flops(420)
    assert predict.training_flops(10, 7, recompute="full") == Flops(560)


def test_time_and_utilization_are_inverses() -> None:
    flops = predict.training_flops(1e9, 20e9)
    time = Seconds(flops / (8 * 0.4 * 312e12))
    assert predict.utilization(flops, time, 8, 312e12) == pytest.approx(0.4)


def test_nobody_is_faster_than_the_peak() -> None:
    """The usual mistake: a peak in TFLOP/s."""
    assert predict.utilization(1e12, 1.0, 1, 1e12) == 1


test_numbers_that_cannot_be_are_refused = refused(
    (lambda: predict.training_flops(-1, 7), "parameters=-1, tokens=7: must not be negative"),
    (lambda: predict.training_flops(1, -7), "tokens=-7"),
    (lambda: predict.training_flops(1, 7, "selective"), "recompute='selective': it must be one of 'none', 'full'"),
    (lambda: predict.training_flops(1, 7, True), "recompute=True"),  # type: ignore[arg-type]
    (lambda: predict.utilization(-1, 1, 1, 1), "flops=-1"),
    *(
        (lambda given=given: predict.utilization(1e12, *given), f"{name}={wrong}.*must be positive")
        for name, wrong, given in (
            ("seconds", 0.0, (0.0, 1, 1e12)),
            ("seconds", "nan", (float("nan"), 1, 1e12)),
            ("devices", 0, (1.0, 0, 1e12)),
            ("peak_flops_per_s", 0.0, (1.0, 1, 0.0)),
        )
    ),
    (
        lambda: predict.utilization(1e15, 1.0, 2, 312),
        r"1.00 PFLOP in 1 s on 2 devices of 312 FLOP/s are 1,602,564,102,5.* times",
    ),
    (lambda: NoiseScale(signal=0.0, noise=1.0).batch_size, "signal=0.0"),
    (lambda: predict.noise_scale((8, 1.0), (8, 2.0)), "a small and a large batch"),
    (lambda: predict.steps_and_examples(0, 100), "must be positive"),
    (lambda: predict.critical_batch_tokens(0.0), "is positive"),
)


def test_the_noise_scale_is_found_from_two_batch_sizes():
    """Gradients of known statistics: each example's is (3, 4) plus independent noise of variance 8 in both numbers."""
    generator = torch.Generator().manual_seed(0)
    examples = torch.tensor([3.0, 4.0]) + 8**0.5 * torch.randn(4000, 64, 2, generator=generator)
    lengths = {b: examples.unflatten(1, (-1, b)).mean(2).square().sum(-1).mean().item() for b in (4, 64)}
    found = predict.noise_scale((4, lengths[4]), (64, lengths[64]))
    assert found.signal == pytest.approx(25, rel=0.01)
    assert found.noise == pytest.approx(16, rel=0.05)
    assert found.batch_size == pytest.approx(16 / 25, rel=0.05)


def test_the_noise_scale_is_exact_for_exact_means():
    found = predict.noise_scale((2, 25 + 16 / 2), (8, 25 + 16 / 8))
    assert (found.signal, found.noise) == (pytest.approx(25), pytest.approx(16))


def test_steps_and_examples_trade_against_each_other():
    for batch_size in (1, 10, 100, 1000):
        steps, examples = predict.steps_and_examples(batch_size, critical=100)
        assert (steps - 1) * (examples - 1) == pytest.approx(1)  # McCandlish et al. 2018, eq. 2.11
    assert predict.steps_and_examples(100, 100) == (2, 2)


def test_the_critical_batch_grows_as_the_loss_falls():
    assert predict.critical_batch_tokens(1.0) == 210_000_000  # B_*, Kaplan et al. 2020, Table 5
    assert predict.critical_batch_tokens(2.0) == round(2.1e8 / 2 ** (1 / 0.21))
