"""The peak of an accumulated step, against `measure`, to the byte."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from course_kit import measure
from course_kit.accounts import MemoryAccount
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.predict import Setup, peak
from course_lib.train.accumulate import accumulated_step, micro_batches
from course_lib.train.recompute import RecomputedLayers

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, foreach=False),
}


def config_of(seed: int) -> GPTConfig:
    draw = random.Random(seed)
    learned = draw.random() < 0.7
    return GPTConfig(
        layers=draw.randint(1, 4), width=32 * draw.randint(1, 4), heads=4, vocab_size=256, context=32,
        positions="learned" if learned else "none",
        bias=draw.random() < 0.5, tied=draw.random() < 0.5,
    )  # fmt: skip


def measured_peak(config: GPTConfig, batch: int, micro: int, seq: int, optimizer: str, **how: str) -> MemoryAccount:
    model = GPT(config, dtype=torch.bfloat16 if how.get("precision") == "bf16" else None)
    if how.get("recompute") == "full":
        model.blocks = RecomputedLayers(model.blocks, every=1)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    whole = text.stories(0).batch(0, 0, 0, batch, seq)
    pieces = micro_batches(whole, micro)
    accumulated_step(model, stepper, pieces)  # the first step makes the optimizer's state
    with measure.memory(model, stepper, inputs=whole) as record:
        accumulated_step(model, stepper, pieces)
    return record.peak


@pytest.mark.parametrize("seed", range(12))
def test_the_peak_is_exact_for_every_cut(seed):
    config = config_of(seed)
    for cut, micro in enumerate((8, 4, 3, 1)):
        optimizer = list(OPTIMIZERS)[(seed + cut) % len(OPTIMIZERS)]  # each cut meets each of them four times
        predicted = peak(Setup(config, 8, 32, micro, optimizer=optimizer))  # type: ignore[arg-type]
        measured = measured_peak(config, 8, micro, 32, optimizer)
        assert measured.total == predicted.total, (micro, optimizer)
        if predicted.phase == "backward":
            assert dict(measured) == dict(predicted), (micro, optimizer)


@pytest.mark.parametrize("how", [{"precision": "bf16"}, {"recompute": "full"}], ids=str)
def test_the_peak_with_16_bits_and_with_recompute(how):
    """Recompute keeps 5,056 bytes of random state for each block, which the formula leaves out."""
    config = GPTConfig(layers=2, width=64, heads=4, vocab_size=256, context=64)
    for micro in (16, 4, 2):
        predicted = peak(Setup(config, 16, 64, micro, optimizer="sgd").with_(**how)).total
        measured = measured_peak(config, 16, micro, 64, "sgd", **how).total
        assert 0 <= measured - predicted <= (5056 * config.layers if "recompute" in how else 0), micro


def test_one_piece_is_a_plain_step_and_more_pay_for_the_gradients():
    config = GPTConfig(layers=2, width=64, heads=4, vocab_size=256, context=32)
    plain = Setup(config, 8, 32)
    one, many = peak(plain.with_(micro_batch=8)), peak(plain.with_(batch_size=64, micro_batch=8))
    assert one.total == peak(plain).total + 4  # the sum of the losses
    assert one.gradients < many.gradients == one.parameters
    assert peak(plain.with_(micro_batch=100)) == one


@pytest.mark.parametrize(
    ("changes", "first_step", "words"),
    [({}, True, "first_step=True"), ({"device": "cuda"}, False, "device='cuda'"), ({"data": 2}, False, "data=2")],
)
def test_mistakes_are_explained(changes, first_step, words):
    setup = Setup(GPTConfig(layers=1, width=8, heads=1, vocab_size=8, context=16), 8, micro_batch=2)
    with pytest.raises(ValueError, match=words):
        peak(setup.with_(**changes), first_step)
