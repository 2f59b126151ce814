"""The formulas against meters, each on a table of setups: a forward and backward pass, and the peak of a real step.

Names of parameters, bytes that autograd keeps and FLOPs are counted by PyTorch; the peak is `measure.memory`'s, with
the course's own recompute, accumulation and master weights.
"""

from __future__ import annotations

import gc
import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from course_kit import measure
from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes, Count
from course_lib import predict
from course_lib.model.gpt import GPT, Attention, GPTConfig
from course_lib.predict import Setup
from course_lib.predict.flops import forward_flops
from course_lib.train import optim
from course_lib.train.accumulate import accumulated_step, micro_batches
from course_lib.train.precision import MasterWeights
from course_lib.train.recompute import RecomputedLayers, recompute_only
from course_lib.train.step import train_step
from tests.parallel.tensor_checks import saved_by
from tests.predict.refused import refused

TORCHS: dict[Any, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, foreach=False),
}
OURS: dict[Any, Any] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: optim.Adam(p),
}
PRECISIONS, RECOMPUTE = ("fp32", "mixed", "bf16"), ("none", "full")
SWITCHES: list[dict[str, Any]] = [
    {"norm": norm, "positions": positions, "bias": bias, "tied": tied, "dropout": dropout, "attention": attention}
    for norm, positions, bias, tied, dropout, attention in itertools.product(
        ("layernorm", "rmsnorm"), ("learned", "rotary"), (True, False), (True, False), (0.0, 0.1), ("explicit", "fused")
    )
]
"""All 64 variants of the model."""
FOLLOWED = [s for s in SWITCHES if (s["norm"], s["positions"], s["dropout"]) == ("layernorm", "learned", 0)]
FOLLOWED += [{**s, "attention": "tiled"} for s in FOLLOWED if s["attention"] == "fused"]
"""Those whose step `peak` follows."""


def built(setup: Setup) -> Any:
    """The setup's model, with as much recompute as it says."""
    model = GPT(setup.gpt, device=setup.device, dtype=torch.bfloat16 if setup.precision == "bf16" else None)
    if setup.recompute == "full":
        model.blocks = RecomputedLayers(model.blocks, setup.recompute_every)
    return recompute_only(model, Attention, "explicit") if setup.recompute == "selective" else model


def batch_of(setup: Setup) -> tuple[Tensor, Tensor]:
    """Inputs and targets, each in a storage of its own."""
    shape, device = (setup.batch_size, setup.seq), setup.device
    return tuple(torch.randint(0, setup.gpt.vocab_size, shape, device=device) for _ in range(2))  # type: ignore[return-value]


# ---- a pass --------------------------------------------------------------------------------------------------------

LLAMA_LIKE: dict[str, Any] = {"norm": "rmsnorm", "positions": "rotary", "dropout": 0.1}
WAYS: list[dict[str, Any]] = [
    {"recompute": "selective"}, *({"recompute": "full", "recompute_every": every} for every in (1, 2, 3))
]  # fmt: skip
CHANGES: list[dict[str, Any]] = [{}, {"dropout": 0.1}, {"dropout": 0.1, "bias": False}, LLAMA_LIKE]
PASSES = [
    *(
        Setup(GPTConfig(2, 16, heads, 31, 32, **switches), rows, 24)
        for switches, heads, rows in itertools.product(SWITCHES, (1, 2), (1, 3))
    ),
    *(
        Setup(GPTConfig(3, 24, 4, 50, 20, ffn_width=70, bias=bias, tied=tied), 5, 12)
        for bias, tied in itertools.product((True, False), repeat=2)
    ),
    *(  # in several tiles of 128 too
        Setup(GPTConfig(2, 16, heads, 31, 200, positions=positions, attention="tiled"), rows, seq)  # type: ignore[arg-type]
        for positions in ("learned", "rotary")
        for rows, seq, heads in ((3, 40, 4), (1, 40, 2), (2, 200, 1))
    ),
    *(  # with one sequence or one head, what runs again reads the very tensor that queries, keys and values lie in
        Setup(GPTConfig(3, 16, heads, 256, 32, **changes), rows, precision=precision, **way)
        for changes in CHANGES
        for (heads, rows), way in itertools.product(((2, 2), (2, 1), (1, 3)), WAYS)
        for precision in ("fp32", "bf16")
    ),
    Setup(GPTConfig(3, 64, 4, vocab_size=100, context=64), 4, 48, precision="bf16"),
]


@pytest.mark.parametrize("setup", PASSES, ids=repr)
def test_a_pass_is_predicted(setup: Setup) -> None:
    """Parameters by name, in the model's order; what autograd keeps for the backward pass; FLOPs of both passes."""
    model, batch = built(setup), batch_of(setup)
    listed = predict.rank_tensors(setup, 0, "parameters")
    assert [(each.name, each.elements) for each in listed] == [
        (name, p.numel()) for name, p in model.named_parameters()
    ]
    count = predict.parameters(setup.gpt)
    assert count == sum(p.numel() for p in model.parameters()) and isinstance(count, Count)
    assert predict.rank_parameters(setup) == count and predict.rank_traffic(setup) == {}  # one rank has all
    with FlopCounterMode(display=False) as flops:
        loss, kept = saved_by(model, *batch)
        forward = flops.get_total_flops()
        loss.backward()
    if setup.gpt.attention == "explicit":  # the counter has no formula for kernels on a CPU, and ours none for tiles
        assert (forward, flops.get_total_flops()) == (forward_flops(setup), predict.step_flops(setup))
    plain = setup.with_(recompute="none", recompute_every=1)
    assert predict.step_flops(setup) == predict.step_flops(plain) + predict.recomputed_flops(setup)
    assert kept == predict.rank_activations(setup)
    assert kept + 2 * 8 * setup.batch_size * setup.seq == predict.activations(setup)
    if setup.precision == "bf16":
        assert predict.activations(setup) == predict.activations(setup.with_(precision="mixed"))


# ---- a step --------------------------------------------------------------------------------------------------------


def stepped(setup: Setup, first_step: bool = False) -> measure.MemoryRecord:
    """A step of the setup, in pieces if it has a micro-batch; not the first one, which makes the optimizer's state."""
    model, batch = built(setup), batch_of(setup)
    optimizer = (OURS if setup.precision == "mixed" else TORCHS)[setup.optimizer](model.parameters())
    optimizer = MasterWeights(optimizer) if setup.precision == "mixed" else optimizer

    def step() -> None:
        if setup.micro_batch is None:
            train_step(model, optimizer, batch)
        else:
            accumulated_step(model, optimizer, micro_batches(batch, setup.micro_batch))

    if not first_step:
        step()
    with measure.memory(model, optimizer, batch) as record:
        step()
    return record


def grid() -> list[tuple[Setup, bool]]:
    """24 points: all six ways to keep activations and weights, each with four sizes; optimizers go round."""
    sizes = [(2, 64, 2, 32), (2, 128, 8, 64), (6, 64, 4, 64), (4, 128, 1, 16)]
    ways = itertools.product(PRECISIONS, RECOMPUTE)
    points = []
    for number, ((precision, recompute), (layers, width, batch_size, seq)) in enumerate(itertools.product(ways, sizes)):
        config = GPTConfig(layers, width, heads=4, vocab_size=256, context=64)
        setup = Setup(config, batch_size, seq, optimizer=list(TORCHS)[(number + number // 4) % 3])
        points.append((setup.with_(precision=precision, recompute=recompute), False))
    return points


def corners(n: int) -> list[tuple[Setup, bool]]:
    """Random variants of what `peak` follows, for the corners that no grid has; some in pieces, some the first step."""
    chosen, points = random.Random(2), []
    for _ in range(n):
        heads = chosen.choice([1, 2, 4])
        config = GPTConfig(
            chosen.choice([1, 2, 4]), heads * chosen.choice([4, 8, 16]), heads, chosen.choice([11, 31, 700]), 64,
            positions=chosen.choice(["learned", "none"]), bias=chosen.random() < 0.5, tied=chosen.random() < 0.5,
            attention=chosen.choice(["explicit", "fused", "tiled"]), ffn_width=chosen.choice([None, 8, 100]),
        )  # fmt: skip
        setup = Setup(config, chosen.choice([1, 2, 5]), chosen.choice([2, 16, 64]), optimizer=chosen.choice([*TORCHS]))
        setup = setup.with_(precision=chosen.choice(PRECISIONS), recompute=chosen.choice(RECOMPUTE))
        way = chosen.choice(["first step", "pieces", "", ""])
        pieces = setup.with_(micro_batch=chosen.randint(1, setup.batch_size)) if way == "pieces" else setup
        points.append((pieces, way == "first step"))
    return points


def steps(setups: list[Setup]) -> list[tuple[Setup, bool]]:
    return [(setup, False) for setup in setups]


CORNERS = corners(160)
TILES = [  # tiles that divide the sequence and tiles that do not, heads that are copied and heads that are views
    Setup(GPTConfig(2, 8 * heads, heads, 11, seq, attention="tiled"), rows, optimizer="sgd", precision=precision)  # type: ignore[arg-type]
    for heads, rows, seq in ((2, 2, 300), (3, 2, 129), (1, 2, 257), (2, 1, 384), (2, 2, 2))
    for precision in ("fp32", "bf16")
]
PIECES = [  # 6 and 5 leave one smaller piece
    Setup(GPTConfig(2, 32 * (1 + n), 4, 256, 32, bias=n % 2 == 0, tied=n < 2), 8, 32, micro, optimizer=optimizer)  # type: ignore[arg-type]
    for micro in (8, 6, 5, 4, 3, 1)
    for n, optimizer in enumerate(TORCHS)
]
RECIPES = [
    Setup(GPTConfig(1, 32, 4, vocab_size, 16), 5, 16, micro, optimizer=optimizer, precision=precision, recompute=way)  # type: ignore[arg-type]
    for micro, optimizer in itertools.product((5, 4, 1), TORCHS)
    for vocab_size, precision, way in itertools.product((256, 3000), PRECISIONS, RECOMPUTE)
]
LESSON_00 = Setup(GPTConfig(4, 128, 4, 256, 128), 8)
SMALL_BATCH = Setup(GPTConfig(2, 64, 4, 64, 16, tied=False), 1)
STEPS = [*steps([LESSON_00, SMALL_BATCH]), *grid(), *CORNERS, *steps([*TILES, *PIECES, *RECIPES])]


@pytest.mark.parametrize(("setup", "first_step"), STEPS, ids=repr)
def test_the_peak_is_exact_in_every_category(setup: Setup, first_step: bool) -> None:
    """Recompute in pieces keeps 5,056 bytes of random state for each block, which the formula leaves out."""
    predicted, record = predict.peak(setup, first_step), stepped(setup, first_step)
    if setup.micro_batch and setup.recompute == "full" and predicted.phase != "optimizer step":
        assert 0 <= record.peak.total - predicted.total <= 5056 * setup.gpt.layers
    else:
        assert dict(predicted) == dict(record.peak) and predicted.phase == record.peak_phase


def test_the_table_has_every_setting_and_every_phase() -> None:
    points = [setup for setup, _ in grid()]
    assert len(points) == len(set(points)) == 24
    ways = {(setup.precision, setup.recompute, setup.optimizer) for setup in points}
    assert ways == {*itertools.product(PRECISIONS, RECOMPUTE, TORCHS)}
    assert {predict.peak(setup).phase for setup in points} == {"backward", "optimizer step"}
    assert {predict.peak(*step).phase for step in CORNERS} == {"forward", "backward", "optimizer step"}
    for precision in PRECISIONS:
        phases = {predict.peak(setup).phase for setup in RECIPES if setup.precision == precision}
        assert phases >= ({"backward", "optimizer step"} if precision == "mixed" else {"backward"})
    assert (predict.peak(LESSON_00).phase, predict.peak(SMALL_BATCH).phase) == ("backward", "optimizer step")


@pytest.mark.parametrize("optimizer", TORCHS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_states_are_what_torch_allocates(precision: Any, optimizer: Any) -> None:
    setup = Setup(GPTConfig(2, 16, 2, 31, 32), 2, 8, precision=precision, optimizer=optimizer)
    model = built(setup)
    made = TORCHS[optimizer](model.parameters())
    train_step(model, made, batch_of(setup))
    state = [v for state in made.state.values() for v in state.values() if isinstance(v, Tensor)]
    held = [list(model.parameters()), [p.grad for p in model.parameters() if p.grad is not None], state]
    states = MemoryAccount(*(Bytes(sum(t.untyped_storage().nbytes() for t in tensors)) for tensors in held))
    assert predict.model_states(setup) == states


def test_one_piece_is_a_plain_step_and_more_pay_for_the_gradients() -> None:
    plain = Setup(GPTConfig(layers=2, width=64, heads=4, vocab_size=256, context=32), 8, 32)
    one, many = (predict.peak(plain.with_(batch_size=rows, micro_batch=8)) for rows in (8, 64))
    assert one.total == predict.peak(plain).total + 4  # the sum of the losses
    assert one.gradients < many.gradients == one.parameters
    assert predict.peak(plain.with_(micro_batch=100)) == one


def test_the_peak_of_a_long_text_grows_by_its_tokens() -> None:
    """Between 20 and 40 tiles nothing but what the pass itself has: no table of tokens × tokens."""
    peaks = [
        predict.peak(Setup(GPTConfig(2, 16, 2, 11, seq, attention="tiled"), 1, optimizer="sgd")).total
        for seq in (2560, 5120, 7680)
    ]
    assert peaks[2] - peaks[1] == peaks[1] - peaks[0]


# ---- a GPU ---------------------------------------------------------------------------------------------------------


def test_what_a_gpus_kernels_keep_instead() -> None:
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


def of_a_gpu() -> list[tuple[Setup, bool]]:
    """One step for all of the batch, without tiles."""
    points = [point for point in (*grid(), *CORNERS) if point[0].micro_batch is None]
    return [(setup.with_(device="cuda"), first) for setup, first in points if setup.gpt.attention != "tiled"]


@pytest.mark.gpu
@pytest.mark.parametrize(("setup", "first_step"), of_a_gpu(), ids=repr)
def test_it_is_predicted_on_a_gpu_too(setup: Setup, first_step: bool) -> None:
    """Left out: the fused kernel's random state, and that it fills up its statistics to 32 rows."""
    if setup.gpt.attention == "fused" and setup.precision != "fp32" and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("no units for bf16: PyTorch falls back on products")
    predicted, record = predict.peak(setup, first_step), stepped(setup, first_step)
    assert float(predicted.total) == pytest.approx(float(record.peak.total), rel=0.05)  # what is promised
    if setup.gpt.attention == "explicit":
        assert dict(predicted) == dict(record.peak) and predicted.phase == record.peak_phase  # what is kept


@pytest.mark.gpu
@pytest.mark.parametrize(("setup", "_"), grid(), ids=repr)
def test_the_allocator_of_the_gpu_says_the_same(setup: Setup, _: bool) -> None:
    """What it held before and no record knows, such as cuBLAS's workspaces, is left out."""
    gc.collect()  # what earlier tests forgot to free shall not go in the middle of this one
    on_card = setup.with_(device="cuda")
    predicted, record = predict.peak(on_card), stepped(on_card)
    grown = record.allocator["peak"] - record.allocator["before"] + record.before.total
    assert float(grown) == pytest.approx(float(predicted.total), rel=0.05)


PLAIN = Setup(GPTConfig(2, 16, 2, 31, 32))
test_steps_that_are_not_followed_are_refused = refused(
    *(
        (lambda changes=changes: predict.peak(PLAIN.with_(**changes)), words)
        for changes, words in (
            ({"config": replace(PLAIN.gpt, norm="rmsnorm")}, "norm='rmsnorm'.*followed with layernorm"),
            ({"config": replace(PLAIN.gpt, positions="rotary")}, "positions='rotary'"),
            ({"config": replace(PLAIN.gpt, dropout=0.1)}, "dropout=0.1"),
            ({"recompute": "selective"}, "recompute='selective', recompute_every=1"),
            ({"recompute": "full", "recompute_every": 2}, "recompute='full', recompute_every=2"),
            ({"precision": "mixed", "gradients": "fp32"}, "gradients='fp32' with precision='mixed'"),
            ({"batch_size": 4, "data": 2, "zero": 1}, "peak does not hold for data=2, zero=1"),
            ({"batch_size": 8, "micro_batch": 2, "device": "cuda"}, "device='cuda'"),
            ({"batch_size": 8, "micro_batch": 2, "data": 2}, "data=2"),
            ({"config": 10**9}, "1,000,000,000 parameters have no layers"),
        )
    ),
    (lambda: predict.peak(PLAIN.with_(batch_size=8, micro_batch=2), first_step=True), "first_step=True"),
    (
        lambda: predict.activations(
            PLAIN.with_(config=replace(PLAIN.gpt, attention="fused", dropout=0.1), precision="bf16")
        ),
        "is not followed",
    ),
)
