"""The peak of an accumulated step, against `measure`, to the byte."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from course_kit import measure
from course_kit.accounts import MemoryAccount
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.predict import Setup, peak
from course_lib.train.accumulate import accumulated_step, micro_batches
from course_lib.train.precision import MasterWeights
from course_lib.train.recompute import RecomputedLayers
from tests.predict.test_peak import OURS, TORCHS


def config_of(seed: int) -> GPTConfig:
    draw = random.Random(seed)
    learned = draw.random() < 0.7
    return GPTConfig(
        layers=draw.randint(1, 4), width=32 * draw.randint(1, 4), heads=4, vocab_size=256, context=32,
        positions="learned" if learned else "none",
        bias=draw.random() < 0.5, tied=draw.random() < 0.5,
    )  # fmt: skip


def measured_peak(config: GPTConfig, batch: int, micro: int, seq: int, optimizer: str, **how: str) -> MemoryAccount:
    precision = how.get("precision")
    model = GPT(config, dtype=torch.bfloat16 if precision == "bf16" else None)
    if how.get("recompute") == "full":
        model.blocks = RecomputedLayers(model.blocks, every=1)
    stepper = (OURS if precision == "mixed" else TORCHS)[optimizer](model.parameters())
    if precision == "mixed":
        stepper = MasterWeights(stepper)
    whole = text.stories(0).batch(0, 0, 0, batch, seq)
    pieces = micro_batches(whole, micro)
    accumulated_step(model, stepper, pieces)  # the first step makes the optimizer's state
    with measure.memory(model, stepper, inputs=whole) as record:
        accumulated_step(model, stepper, pieces)
    return record.peak


@pytest.mark.parametrize("seed", range(12))
def test_the_peak_is_exact_for_every_cut(seed):
    config = config_of(seed)
    for cut, micro in enumerate((8, 6, 5, 4, 3, 1)):  # 6 and 5 leave one smaller piece
        optimizer = list(TORCHS)[(seed + cut) % len(TORCHS)]
        predicted = peak(Setup(config, 8, 32, micro, optimizer=optimizer))  # type: ignore[arg-type]
        measured = measured_peak(config, 8, micro, 32, optimizer)
        assert dict(measured) == dict(predicted), (micro, optimizer)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "mixed"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("vocab_size", [256, 3000])
def test_the_peak_in_every_phase_of_every_recipe(precision, recompute, vocab_size):
    """Recompute keeps 5,056 bytes of random state for each block, which the formula leaves out."""
    config, how = GPTConfig(1, 32, 4, vocab_size, 16), {"precision": precision, "recompute": recompute}
    phases = []
    for micro, optimizer in itertools.product((5, 4, 1), TORCHS):
        predicted = peak(Setup(config, 5, 16, micro, optimizer=optimizer).with_(**how))  # type: ignore[arg-type]
        measured = measured_peak(config, 5, micro, 16, optimizer, **how)
        phases.append(predicted.phase)
        if recompute == "none" or predicted.phase == "optimizer step":
            assert dict(measured) == dict(predicted), (micro, optimizer)
        else:
            assert 0 <= measured.total - predicted.total <= 5056 * config.layers, (micro, optimizer)
    assert "backward" in phases
    if precision == "mixed":
        assert "optimizer step" in phases


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
