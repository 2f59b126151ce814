"""The peak of a step over a grid: layers × width × batch × sequence × recompute × precision × optimizer.

Each point is a real training step under `measure.memory`, with the course's own recompute and master weights.
"""

from __future__ import annotations

import gc
import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from course_kit import measure
from course_lib import predict
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.predict import Setup
from course_lib.train import optim
from course_lib.train.precision import MasterWeights
from course_lib.train.recompute import RecomputedLayers
from course_lib.train.step import train_step

TORCHS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, foreach=False),
}
OURS: dict[str, Any] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: optim.Adam(p),
}
PRECISIONS, RECOMPUTE = ("fp32", "mixed", "bf16"), ("none", "full")


def predicted_step(config, batch_size, seq, optimizer, first_step, precision, recompute, device: Any = "cpu"):
    setup = Setup(config, batch_size, seq, precision=precision, optimizer=optimizer, recompute=recompute, device=device)
    return predict.peak(setup, first_step)


def measured_step(config, batch_size, seq, optimizer, first_step, precision, recompute, device="cpu"):
    model = GPT(config, device=device, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    made = (TORCHS if precision != "mixed" else OURS)[optimizer](model.parameters())
    if precision == "mixed":
        made = MasterWeights(made)
    if recompute == "full":
        model.blocks = RecomputedLayers(model.blocks, every=1)
    tokens, targets = (torch.randint(0, config.vocab_size, (batch_size, seq), device=device) for _ in range(2))
    if not first_step:
        train_step(model, made, (tokens, targets))
    with measure.memory(model, made, (tokens, targets)) as record:
        train_step(model, made, (tokens, targets))
    return record


def grid() -> list[tuple[Any, ...]]:
    """24 points: all six ways to keep activations and weights, each with four sizes; optimizers go round."""
    sizes = [(2, 64, 2, 32), (2, 128, 8, 64), (6, 64, 4, 64), (4, 128, 1, 16)]
    ways = itertools.product(PRECISIONS, RECOMPUTE)
    points = []
    for number, ((precision, recompute), (layers, width, batch_size, seq)) in enumerate(itertools.product(ways, sizes)):
        config = GPTConfig(layers, width, heads=4, vocab_size=256, context=64)
        optimizer = list(TORCHS)[(number + number // 4) % 3]
        points.append((config, batch_size, seq, optimizer, False, precision, recompute))
    return points


@pytest.mark.parametrize("point", grid(), ids=lambda p: f"{p[0].layers}x{p[0].width}, {p[1]}x{p[2]}, {p[3:]}")
def test_the_grid_is_predicted(point):
    predicted, record = predicted_step(*point), measured_step(*point)
    assert float(predicted.total) == pytest.approx(float(record.peak.total), rel=0.01)  # what is promised
    assert dict(predicted) == dict(record.peak) and predicted.phase == record.peak_phase  # what is kept


def test_the_grid_has_24_points_and_every_setting():
    points = grid()
    assert len(points) == len({repr(point) for point in points}) == 24
    assert {point[3] for point in points} == {*TORCHS}
    assert {(point[5], point[6], point[3]) for point in points} == {*itertools.product(PRECISIONS, RECOMPUTE, TORCHS)}
    assert {predicted_step(*point).phase for point in points} == {"backward", "optimizer step"}


def variants(n: int) -> list[tuple[Any, ...]]:
    """Random variants of the model that `peak` follows, for the corners that no grid has."""
    chosen, points = random.Random(2), []
    for _ in range(n):
        heads = chosen.choice([1, 2, 4])
        config = GPTConfig(
            chosen.choice([1, 2, 4]), heads * chosen.choice([8, 16]), heads, chosen.choice([31, 700]), context=64,
            positions=chosen.choice(["learned", "none"]), bias=chosen.random() < 0.5, tied=chosen.random() < 0.5,
            attention=chosen.choice(["explicit", "fused"]),
        )  # fmt: skip
        step = (chosen.choice([1, 2, 5]), chosen.choice([2, 16, 64]), chosen.choice([*TORCHS]), chosen.random() < 0.3)
        points.append((config, *step, chosen.choice(PRECISIONS), chosen.choice(RECOMPUTE)))
    return points


@pytest.mark.parametrize("point", variants(60), ids=str)
def test_the_peak_is_exact_for_every_variant(point):
    predicted, record = predicted_step(*point), measured_step(*point)
    assert dict(predicted) == dict(record.peak) and predicted.phase == record.peak_phase


@pytest.mark.parametrize("precision", PRECISIONS)
def test_activations_in_16_bits_are_what_is_alive_between_the_passes(precision):
    config = GPTConfig(3, 64, 4, vocab_size=100, context=64)
    record = measured_step(config, 4, 48, "sgd", False, precision, "none")
    assert predict.activations(Setup(config, 4, 48, precision=precision)) == record.end_of("forward").activations


def test_what_a_gpus_kernels_keep_instead():
    """Dropout: a byte where a CPU keeps a factor. LayerNorm: statistics in 32 bits. The fused kernel: no mask."""
    layers, batch_size, seq, heads = 3, 4, 48, 4
    config = GPTConfig(layers, 64, heads, vocab_size=100, context=64, dropout=0.1)
    tokens, scores = batch_size * seq, batch_size * heads * seq**2
    noise, norms = tokens * 64 * (1 + 2 * layers) + scores * layers, 2 * layers + 1
    less: dict[Any, int] = {"fp32": 3 * noise, "bf16": noise - norms * 2 * 2 * tokens}
    for precision, nbytes in less.items():
        cpu = Setup(config, batch_size, seq, precision=precision)
        assert predict.activations(cpu) - predict.activations(cpu.with_(device="cuda")) == nbytes
    fused = Setup(replace(config, attention="fused"), batch_size, seq, precision="bf16", device="cuda")
    without = predict.activations(fused.with_(config=replace(config, attention="fused", dropout=0.0)))
    assert predict.activations(fused) - without == noise - scores * layers


@pytest.mark.gpu
@pytest.mark.parametrize("point", [*grid(), *variants(60)], ids=str)
def test_it_is_predicted_on_a_gpu_too(point):
    """Left out: the fused kernel's random state, and that it fills up its statistics to 32 rows."""
    if point[0].attention == "fused" and point[5] != "fp32" and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("no units for bf16: PyTorch falls back on products")
    predicted, record = predicted_step(*point, device="cuda"), measured_step(*point, device="cuda")
    assert float(predicted.total) == pytest.approx(float(record.peak.total), rel=0.05)  # what is promised
    if point[0].attention == "explicit":
        assert dict(predicted) == dict(record.peak) and predicted.phase == record.peak_phase  # what is kept


@pytest.mark.gpu
@pytest.mark.parametrize("point", grid(), ids=lambda p: f"{p[0].layers}x{p[0].width}, {p[1]}x{p[2]}, {p[3:]}")
def test_the_allocator_of_the_gpu_says_the_same(point):
    """What it held before and no record knows, such as cuBLAS's workspaces, is left out."""
    gc.collect()  # what earlier tests forgot to free shall not go in the middle of this one
    predicted, record = predicted_step(*point, device="cuda"), measured_step(*point, device="cuda")
    grown = record.allocator["peak"] - record.allocator["before"] + record.before.total
    assert float(grown) == pytest.approx(float(predicted.total), rel=0.05)


def test_fused_dropout_in_16_bits_is_refused():
    config = GPTConfig(1, 16, 2, 31, 32, attention="fused", dropout=0.1)
    with pytest.raises(ValueError, match="is not followed"):
        predict.activations(Setup(config, 1, 8, precision="bf16"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": GPTConfig(2, 16, 2, 31, 32, norm="rmsnorm")}, "norm='rmsnorm'.*followed with layernorm"),
        ({"config": GPTConfig(2, 16, 2, 31, 32, positions="rotary")}, "positions='rotary'"),
        ({"config": GPTConfig(2, 16, 2, 31, 32, dropout=0.1)}, "dropout=0.1"),
        ({"recompute": "selective"}, "recompute='selective', recompute_every=1"),
        ({"recompute": "full", "recompute_every": 2}, "recompute='full', recompute_every=2"),
        ({"precision": "mixed", "gradients": "fp32"}, "gradients='fp32' with precision='mixed'"),
        ({"batch_size": 4, "data": 2, "zero": 1}, "peak does not hold for data=2, zero=1"),
        ({"config": 10**9}, "1,000,000,000 parameters have no layers"),
    ],
)
def test_steps_that_are_not_followed_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        predict.peak(Setup(GPTConfig(2, 16, 2, 31, 32)).with_(**changes))
