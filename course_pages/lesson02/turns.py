"""Checks of lesson 02's turns: a peak, model states, a block's activations, a cache; and bytes that real steps hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from course_kit import measure
from course_kit.notebook.your_turn import Function
from course_kit.units import Bytes
from course_lib import predict
from course_lib.model import hardware, text, zoo
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.train import optim
from course_lib.train.precision import MasterWeights
from course_lib.train.recompute import RecomputedLayers
from course_lib.train.step import train_step
from course_pages.shared.kept import kept_by

SMALL = GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=128)
LONG = replace(SMALL, context=512)
TINY = GPTConfig(layers=1, width=16, heads=2, vocab_size=32, context=8)
WAYS = [(precision, moments) for precision in ("fp32", "mixed", "bf16") for moments in range(3)]
"""Precisions and moments of the states that real steps hold."""

_LEAN = predict.Setup(
    replace(zoo.GPT2_XL.config, attention="fused"), batch_size=8, seq=1024, precision="mixed", recompute="full"
)
EXERCISES = 2 + 2 + 4 + 4, predict.largest(_LEAN, "batch_size", hardware.A100_40GB.usable).value
"""Answers to the exercises: bytes a parameter of a copy and one moment; sequences of GPT-2 XL, by the peak."""


def batch_of(batch_size: int, seq: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    return text.stories(seed=0).batch(seed=0, step=0, rank=0, batch_size=batch_size, context=seq)


def states_held(precision: str, moments: int, config: GPTConfig = SMALL) -> Bytes:
    """Weights, gradients and optimizer state that are alive after a real step, without the step counters."""
    model = GPT(config, dtype=torch.bfloat16 if precision == "bf16" else None)
    parameters = list(model.parameters())
    rules: Any = optim if precision == "mixed" else torch.optim
    rule = rules.Adam(parameters) if moments == 2 else rules.SGD(parameters, lr=1e-3, momentum=0.9 * moments)
    optimizer = MasterWeights(rule) if precision == "mixed" else rule
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    with measure.memory(model, optimizer) as record:
        train_step(model, optimizer, (tokens, tokens))
        alive = record.now
    steps = 4 * len(parameters) if moments == 2 and precision != "mixed" else 0
    return alive.parameters + alive.gradients + alive.optimizer - Bytes(steps)


def between_the_passes(config: GPTConfig, batch_size: int, seq: int) -> Bytes:
    """Activations that are alive when the forward pass has ended."""
    model, batch = GPT(config), batch_of(batch_size, seq)
    with measure.memory(model) as record:
        loss = model(*batch)  # keeps the graph alive
        alive = record.now.activations
    del loss
    return alive


def measured_peak(precision: str, recompute: str) -> Bytes:
    """Most bytes alive in the second step of the small GPT."""
    model, batch = GPT(SMALL, seed=0), batch_of(8, 128)
    mixed = precision == "mixed"
    adam = MasterWeights(optim.Adam(model.parameters())) if mixed else torch.optim.Adam(model.parameters())
    if recompute == "full":
        model.blocks = RecomputedLayers(model.blocks, every=1)
    train_step(model, adam, batch)
    with measure.memory(model, adam, batch) as record:
        train_step(model, adam, batch)
    return record.peak.total


def check_peak(function: Function) -> None:
    """Lists whose peak is early, late, last, and not at the largest allocation."""
    cases = (([4, 2, -4, 3], 6), ([1, 2, 8, -8, -2, 9], 11), ([5, -5, 7], 7), ([3, -1, 4, -6], 6), ([], 0))
    for changes, due in cases:
        given = list(changes)
        said = function(given)
        assert given == changes, f"the list should stay as it is, but {changes} became {given}"
        assert said == due, f"of {changes} the peak should be {due}, but is {said}"


def check_states(function: Function) -> None:
    """Every precision with every number of moments, against the bytes that a real step of a tiny model holds."""
    psi = predict.parameters(TINY)
    for precision, moments in WAYS:
        due, said = states_held(precision, moments, TINY), function(int(psi), precision, moments)
        assert said == due, (
            f"{precision} with {moments} moments: a real step holds {'more' if said < due else 'fewer'} than your "
            f"{said / psi:g} bytes a parameter"
        )


def check_block(function: Function) -> None:
    """Bytes that a real block keeps, in shapes that tell all factors apart."""
    for b, s, d, heads in ((8, 128, 128, 4), (2, 512, 128, 4), (3, 64, 96, 8)):
        block = GPT(replace(LONG, width=d, heads=heads)).blocks[0]
        due = sum(kept_by(block, torch.randn(b, s, d, requires_grad=True)))
        said = function(b, s, d, heads)
        stream, scores, mean = 4 * b * s * d, 4 * b * heads * s * s, 4 * b * s
        assert said == due, (
            f"{b} × {s} tokens, {d} wide, {heads} heads: {due:,d} bytes are kept, but it says {said:,}, "
            f"{abs(due - said):,} too {'few' if said < due else 'many'} (a bar has: as wide as the stream "
            f"{stream:,d}, scores {scores:,d}, a norm's mean {mean:,d})"
        )


def check_cache(function: Function) -> None:
    """Keys and values that a real GPT's layers make for its tokens, and a shape with fewer heads for keys."""
    for config, b, s in ((SMALL, 8, 128), (replace(SMALL, layers=3, heads=8), 2, 40)):
        head_width = config.width // config.heads
        due, said = _cached(GPT(config), b, s), function(config.layers, config.heads, head_width, s, b, 4)
        assert said == due, (
            f"{config.layers} layers, {config.heads} heads of {head_width}, {b} × {s} tokens of 4 bytes a "
            f"number: {due:,d} bytes are made, but it says {said:,}"
        )
    llama = zoo.LLAMA3_8B
    due, said = predict.kv_cache(llama, 4, 100), function(32, 8, 128, 100, 4, 2)
    assert said == due, f"Llama 3 8B caches {due:,d} bytes for 4 × 100 tokens of 2 bytes a number, but it says {said:,}"


def _cached(model: Any, batch_size: int, seq: int) -> int:
    """Bytes of keys and values that the layers of a model make."""
    cache, width = [], model.config.width
    for block in model.blocks:
        block.attention.qkv.register_forward_hook(lambda _m, _x, qkv: cache.append(qkv[..., width:].clone()))
    with torch.no_grad():
        model(batch_of(batch_size, seq)[0])
    return sum(tensor.nbytes for tensor in cache)
