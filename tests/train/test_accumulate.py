"""Accumulation: the step of the whole batch, however ragged, however cut, with clipping and the scaler."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.text import Batch
from course_lib.train.accumulate import IGNORE, accumulate, accumulated_step, count_tokens, micro_batches, ragged_batch
from course_lib.train.gradients import clip_gradients
from course_lib.train.optim import SGD, Adam
from course_lib.train.precision import LossScaler, MasterWeights
from tests.mutants.train import accumulate as mutants
from tests.predict.refused import refused
from tests.train.saved import gradients, same

CONFIG = GPTConfig(layers=2, width=16, heads=2, vocab_size=20, context=16)
LENGTHS = [3, 16, 2, 9, 4, 15, 5]


def ragged() -> Batch:
    draw = torch.Generator().manual_seed(0)
    return ragged_batch([torch.randint(20, (length + 1,), generator=draw) for length in LENGTHS])


def whole_step(model: nn.Module, optimizer: Any, batch: Batch, max_norm: float | None) -> Tensor:
    """The oracle: `train_step`, with the clipping that it leaves to others."""
    optimizer.zero_grad()
    loss = model(*batch)
    loss.backward()
    if max_norm is not None:
        clip_gradients(optimizer, max_norm)
    optimizer.step()
    return loss.detach()


def check_step(step: Callable[..., Tensor], make: Callable[[Any], Any], size: int) -> None:
    """Five steps in float64: loss and weights equal those of the whole batch, for each limit, with a scaler or not.

    Float64 has room: the gradients are sums over 54 tokens and some hundred products each, so a few 1e-14 apart; Adam
    divides by their size, so weights near zero gradients may differ by that over its eps. Wrong weights differ by 1e-3.
    """
    for max_norm in (None, 0.5):
        for scaler in (None, LossScaler(2.0**12)):
            ours, theirs = GPT(CONFIG, dtype=torch.float64), GPT(CONFIG, dtype=torch.float64)
            our_optimizer, their_optimizer = make(ours.parameters()), make(theirs.parameters())
            for _ in range(5):
                pieces = micro_batches(ragged(), size)
                loss = step(ours, our_optimizer, pieces, max_norm=max_norm, scaler=scaler)
                their_loss = whole_step(theirs, their_optimizer, ragged(), max_norm)
                torch.testing.assert_close(loss, their_loss, rtol=1e-12, atol=0)
                for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def check_overflow(step: Callable[..., Tensor]) -> None:
    """inf in the gradient of one piece: no weight moves, and the scale is halved."""
    model = GPT(CONFIG)
    before = copy.deepcopy(model)
    calls = 0

    def spoil(gradient: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return gradient * float("inf") if calls == 2 else gradient

    def watch(module: nn.Module, inputs: Any, output: Tensor) -> None:
        output.register_hook(spoil)

    model.final_norm.register_forward_hook(watch)
    scaler = LossScaler(2.0**12)
    step(model, SGD(model.parameters(), lr=0.1), micro_batches(ragged(), 2), max_norm=1.0, scaler=scaler)
    assert calls == 4
    assert same(model.parameters(), before.parameters())
    assert scaler.get_scale() == 2.0**11 and scaler.skipped == 1


def check_all(step: Callable[..., Tensor]) -> None:
    check_overflow(step)
    for make in OPTIMIZERS.values():
        check_step(step, make, 2)


OPTIMIZERS = {
    "ours, SGD": lambda p: SGD(p, lr=0.1),
    "ours, Adam": lambda p: Adam(p, lr=1e-3),
    "torch, SGD": lambda p: torch.optim.SGD(p, lr=0.1),
}


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.nightly), 2, 3, 7, 100])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_step_is_that_of_the_whole_batch(name, size):
    check_step(accumulated_step, OPTIMIZERS[name], size)


def test_an_overflow_in_one_piece_skips_the_step():
    check_overflow(accumulated_step)


@pytest.mark.parametrize("mutant", mutants.ALL)
def test_a_wrong_version_does_not_pass(mutant):
    with pytest.raises(AssertionError):
        check_all(mutant)


def gradient_by_token(dtype: torch.dtype) -> list[Tensor]:
    """For each parameter, the sum over tokens of the magnitude of that token's gradient."""
    model = GPT(CONFIG, dtype=dtype)
    inputs, targets = ragged()
    magnitudes = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for row, column in (targets != IGNORE).nonzero().tolist():
        alone = torch.full_like(targets, IGNORE)
        alone[row, column] = targets[row, column]
        (model(inputs, alone) / count_tokens(targets)).backward()
        for magnitude, gradient in zip(magnitudes, gradients(model), strict=True):
            magnitude += gradient.abs()
    return magnitudes


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", [1, 3])
def test_gradients_differ_by_no_more_than_another_order_of_the_sum(dtype, size):
    """Terms: one for each token, and those of the sums inside the network on the way to one token's gradient, whose
    order a piece of another shape may change as well. Each of the n - 1 additions of a sum rounds by at most eps / 2 of
    its result, and there are two sums (Higham 2002, §4.2). The magnitude is that of the parameter's largest element:
    inside the network sums cancel (the gradient of a key's bias is 0 but for rounding), which leaves no small
    magnitudes."""
    model = GPT(CONFIG, dtype=dtype)
    accumulate(model, micro_batches(ragged(), size))
    ours = gradients(model)
    model(*ragged()).backward()
    theirs = gradients(model)
    inside = CONFIG.layers * (4 * CONFIG.width + 2 * CONFIG.mlp_width + 2 * CONFIG.context) + CONFIG.vocab_size
    bound = (count_tokens(ragged()[1]) + inside - 1) * torch.finfo(dtype).eps
    means = [model(*piece) / len(micro_batches(ragged(), size)) for piece in micro_batches(ragged(), size)]
    torch.stack(means).sum().backward()
    for a, b, wrong, magnitude in zip(ours, theirs, gradients(model), gradient_by_token(dtype), strict=True):
        assert (a - b).abs().max() <= bound * magnitude.max()
        assert (wrong - b).abs().max() > bound * magnitude.max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_with_16_bit_weights_clipping_and_the_scaler(dtype):
    """Gradients are added in 16 bits: 7 additions, each rounded by half an eps of the gradient's length at most."""
    steps = {}
    for size in (1, 100):
        model = GPT(CONFIG)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer = MasterWeights(SGD(model.parameters(), lr=1.0), dtype)
        accumulated_step(model, optimizer, micro_batches(ragged(), size), max_norm=0.1, scaler=LossScaler(2.0**8))
        masters = [optimizer.state[parameter]["master"] for parameter in model.parameters()]
        steps[size] = torch.cat([(a - b).flatten() for a, b in zip(masters, before, strict=True)])
        assert steps[size].norm().item() == pytest.approx(0.1, rel=1e-3)
    assert (steps[1] - steps[100]).norm() <= 3.5 * torch.finfo(dtype).eps * steps[100].norm()


def test_a_ragged_batch_is_padded_and_its_pieces_are_trimmed():
    inputs, targets = ragged_batch([torch.tensor(row) for row in ([1, 2, 3, 4], [5, 6], [7, 8, 9])], padding=0)
    assert inputs.tolist() == [[1, 2, 3], [5, 0, 0], [7, 8, 0]]
    assert targets.tolist() == [[2, 3, 4], [6, IGNORE, IGNORE], [8, 9, IGNORE]]
    assert count_tokens(targets) == 6
    first, second = micro_batches((inputs[1:], targets[1:]), 1)
    assert first[0].tolist() == [[5]] and second[1].tolist() == [[8, 9]]
    assert [len(piece[0]) for piece in micro_batches((inputs, targets), 2)] == [2, 1]


def test_a_piece_without_targets_is_left_out():
    model = GPT(CONFIG)
    inputs, targets = ragged()
    loss = accumulate(model, [(inputs, torch.full_like(targets, IGNORE)), (inputs, targets)])
    ours = gradients(model)
    model(inputs, targets).backward()
    assert loss.isfinite() and same(ours, gradients(model))


test_mistakes_are_explained = refused(
    (lambda: micro_batches(ragged(), 0), "size=0 given"),
    (lambda: ragged_batch([torch.tensor([1, 2]), torch.tensor([1])]), "shortest of 2 sequences has 1 tokens"),
    (lambda: ragged_batch([]), "shortest of 0 sequences has 0 tokens"),
    (lambda: accumulate(GPT(CONFIG), []), "0 pieces without a single target"),
    (lambda: accumulate(GPT(CONFIG), [(ragged()[0], torch.full_like(ragged()[1], IGNORE))]), "1 pieces without"),
)
