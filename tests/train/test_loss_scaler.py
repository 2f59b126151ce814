"""The loss scaler: PyTorch's scale and skipped steps over 300 steps, and gradients of their true size when clipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lib.train.gradients import clip_gradients
from course_lib.train.optim import SGD
from course_lib.train.precision import LossScaler
from tests.mutants.train import precision as mutants
from tests.predict.refused import refused
from tests.train.saved import same, through_a_file

SETTINGS = {
    "default": {},
    "fast": {"init_scale": 1024.0, "growth_interval": 7},
    "not powers of two": {"init_scale": 1000.0, "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 3},
    "to the end of fp32": {"init_scale": 2.0**120, "growth_interval": 5},
}


def overflow_at(step: int) -> float | None:
    """What to put into the gradient of this step: inf or nan in about one of nine, twice in a row at times."""
    draw = torch.randint(18, (), generator=torch.Generator().manual_seed(step // 2 if step % 50 < 10 else step))
    return {0: float("inf"), 1: float("nan")}.get(int(draw))


def scaled_run(scaler: Any, clip: Callable[[Any, Any], object], steps: int = 300) -> tuple[list[Any], list[Tensor]]:
    """Scales after each step, and the weights after each step. The gradient overflows as `overflow_at` says."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.constant_(model.weight, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * 2.0**100, momentum=0.5)
    scales, weights = [], []
    for step in range(steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 + step))
        optimizer.zero_grad()
        loss = model(x).square().mean() * 2.0**-100  # so small that no scale overflows by itself
        scaler.scale(loss).backward()
        injected = overflow_at(step)
        if injected is not None:
            model.weight.grad[0, step % 4] = injected  # type: ignore[index]
        if step % 3 == 0:
            clip(scaler, optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        weights.append(model.weight.detach().clone())
    return scales, weights


def check_trajectory(kind: type[LossScaler], settings: dict[str, Any]) -> None:
    """Scale and weights equal those under PyTorch's scaler after each of 300 steps."""
    ours = kind(**settings)
    scales, weights = scaled_run(ours, lambda scaler, optimizer: scaler.unscale_(optimizer))
    theirs = torch.amp.GradScaler("cpu", **settings)  # type: ignore[attr-defined]
    their_scales, their_weights = scaled_run(theirs, lambda scaler, optimizer: scaler.unscale_(optimizer))
    assert scales == their_scales
    assert same(weights, their_weights)
    skipped = sum(overflow_at(step) is not None for step in range(300))
    assert ours.skipped == skipped > 20


@pytest.mark.parametrize("name", SETTINGS)
def test_300_steps_with_overflows_equal_torchs(name):
    check_trajectory(LossScaler, SETTINGS[name])


@pytest.mark.parametrize("mutant", mutants.SCALERS)
def test_a_wrong_scaler_does_not_pass(mutant):
    with pytest.raises((AssertionError, ValueError)):  # ValueError: weights full of nan drove the scale to 0
        for settings in SETTINGS.values():
            check_trajectory(mutant, settings)


def check_several_optimizers(scaler_kind: type[LossScaler], kind: Any, seed: int) -> None:
    """Overflows in one of them or both, gradients unscaled by hand or not, two parameter groups: 30 steps."""
    draw = torch.Generator().manual_seed(seed)
    chances = torch.rand(30, 2, 2, generator=draw)
    found = []
    for scaler in (scaler_kind(2.0**10, growth_interval=2), torch.amp.GradScaler("cpu", 2.0**10, growth_interval=2)):  # type: ignore[attr-defined]
        weights = [nn.Parameter(torch.ones(3)) for _ in range(4)]
        family = kind if isinstance(scaler, LossScaler) else torch.optim.SGD
        pairs = (weights[:2], weights[2:])
        optimizers = [family([{"params": a}, {"params": b, "lr": 0.01}], lr=0.1, momentum=0.5) for a, b in pairs]
        for step in chances:
            for weight in weights:
                weight.grad = None  # without a word to the optimizers, as model.zero_grad() does it
            scaler.scale(torch.cat([*weights]).square().sum()).backward()
            for (overflows, by_hand), pair, optimizer in zip(step.tolist(), pairs, optimizers, strict=True):
                if overflows < 0.2:
                    pair[1].grad[0] = torch.inf  # type: ignore[index]
                if by_hand < 0.5:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
            scaler.update()
            found.append([scaler.get_scale(), *(weight.tolist() for weight in weights)])
    assert found[:30] == found[30:]


@pytest.mark.parametrize("kind", [SGD, torch.optim.SGD], ids=["ours", "torch"])
@pytest.mark.parametrize("seed", range(5))
def test_several_optimizers_equal_torchs(kind, seed):
    check_several_optimizers(LossScaler, kind, seed)


def test_a_scaler_for_one_optimizer_does_not_pass_with_several():
    with pytest.raises(AssertionError):
        check_several_optimizers(mutants.UnscalesTheFirst, SGD, 0)


def test_a_static_scale_stays_and_overflows_are_skipped():
    scaler = LossScaler(512.0, dynamic=False, growth_interval=2)
    scales, weights = scaled_run(scaler, lambda *_: None, steps=60)
    assert set(scales) == {512.0} and scaler.skipped > 3
    assert all(bool(weight.isfinite().all()) for weight in weights)


@pytest.mark.parametrize("direction", ["ours to ours", "torch to ours", "ours to torch"])
def test_a_saved_scaler_goes_on(direction):
    settings: dict[str, Any] = SETTINGS["fast"]
    whole, _ = scaled_run(LossScaler(**settings), lambda *_: None)
    theirs = torch.amp.GradScaler("cpu", **settings)  # type: ignore[attr-defined]
    first: Any = theirs if direction.startswith("torch") else LossScaler(**settings)
    second: Any = torch.amp.GradScaler("cpu") if direction.endswith("torch") else LossScaler()  # type: ignore[attr-defined]
    scaled_run(first, lambda *_: None, steps=100)
    second.load_state_dict(through_a_file(first.state_dict()))
    assert second.get_scale() == whole[99]
    if direction == "ours to ours":
        assert second.skipped == first.skipped > 0
    assert scaled_run(second, lambda *_: None, 100)[0] == scaled_run(first, lambda *_: None, 100)[0]


def unscale_then_clip(scaler: LossScaler, optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    scaler.unscale_(optimizer)
    return clip_gradients(optimizer, max_norm)


def check_clipping(clip: Callable[[LossScaler, Any, float], float]) -> None:
    """The step is the one without a scaler, whether or not the gradient is longer than the limit."""
    for max_norm in (0.1, 100.0):
        for kind in (SGD, torch.optim.SGD):
            weights = []
            for scaler in (None, LossScaler(2.0**10)):
                weight = nn.Parameter(torch.ones(3))
                optimizer = kind([weight], lr=1.0)
                loss = (weight * torch.tensor([1.0, 2.0, 2.0])).sum()
                (loss if scaler is None else scaler.scale(loss)).backward()
                if scaler is None:
                    length = clip_gradients(optimizer, max_norm)
                    optimizer.step()
                else:
                    length = clip(scaler, optimizer, max_norm)
                    scaler.step(optimizer)
                assert length == pytest.approx(3.0)
                weights.append(weight.detach())
            torch.testing.assert_close(weights[1], weights[0], rtol=4e-7, atol=0)


def test_unscaled_then_clipped_is_the_step_without_a_scaler():
    check_clipping(unscale_then_clip)


@pytest.mark.parametrize("mutant", mutants.CLIPS)
def test_clipping_at_the_wrong_moment_does_not_pass(mutant):
    with pytest.raises(AssertionError):
        check_clipping(mutant)


def _twice() -> None:
    scaler, optimizer = LossScaler(), SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def _two_steps() -> None:
    """The gradients of the second would not be unscaled."""
    scaler, optimizer = LossScaler(), SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    scaler.step(optimizer)
    scaler.step(optimizer)


def _always_inf() -> None:
    scaler = LossScaler(2.0**-140)
    weight = nn.Parameter(torch.ones(1))
    for _ in range(20):
        weight.grad = torch.tensor([torch.inf])
        scaler.step(SGD([weight], lr=0.1))
        scaler.update()


test_mistakes_are_explained = refused(
    (lambda: LossScaler(0.0), "init_scale=0.0"),
    (lambda: LossScaler(growth_interval=0), "growth_interval=0"),
    (lambda: LossScaler().update(), r"call step\(optimizer\) first"),
    (_twice, "unscaled already"),
    (_two_steps, r"has stepped since the last update\(\)"),
    (_always_inf, "the loss scale went down to 0"),
)


def test_a_refused_unscale_leaves_all_as_it_was() -> None:
    """A step behind it is refused as well, and no gradient is unscaled alone."""
    wide, thin = (torch.nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in (torch.float32, torch.float16))
    optimizer, scaler = torch.optim.SGD([wide, thin], lr=1e-3), LossScaler(1024.0)
    scaler.scale(wide.sum() + thin.float().sum()).backward()
    for call in (lambda: scaler.unscale_(optimizer), lambda: scaler.step(optimizer)):
        with pytest.raises(ValueError, match="would lose their small numbers"):
            call()
        assert wide.grad is not None and wide.grad.tolist() == [1024.0, 1024.0] and wide.tolist() == [1.0, 1.0]
