"""Model states, activations and peak: against tensors that exist, hand counts, and published figures."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from course_kit import measure
from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes
from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.zoo import SWITCH_BASE
from course_lib.predict import Setup
from course_lib.predict.lifetimes.ledger import Ledger
from course_lib.predict.lifetimes.step import StepLifetimes
from course_lib.train.step import train_step

SMALL = GPTConfig(layers=2, width=16, heads=2, vocab_size=31, context=32)
MAKE: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p),
}
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


def batch_of(config: GPTConfig, batch_size: int, seq: int) -> tuple[Tensor, Tensor]:
    shape = (batch_size, seq)
    return torch.randint(0, config.vocab_size, shape), torch.randint(0, config.vocab_size, shape)


def nbytes_of(tensors: Any) -> int:
    return sum(t.untyped_storage().nbytes() for t in tensors)


# ---- model states --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", MAKE)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_states_are_what_torch_allocates(precision, optimizer):
    model = GPT(SMALL, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[precision])
    made = MAKE[optimizer](model.parameters())
    train_step(model, made, batch_of(SMALL, 2, 8))
    state = [v for state in made.state.values() for v in state.values() if isinstance(v, Tensor)]
    assert predict.model_states(Setup(SMALL, precision=precision, optimizer=optimizer)) == MemoryAccount(
        parameters=Bytes(nbytes_of(model.parameters())),
        gradients=Bytes(nbytes_of(p.grad for p in model.parameters() if p.grad is not None)),
        optimizer=Bytes(nbytes_of(state)),
    )


def test_mixed_precision_with_adam_is_16_bytes_a_parameter():
    mixed = Setup(10**9, precision="mixed")
    states = predict.model_states(mixed)
    assert (states.parameters, states.gradients, states.optimizer) == (2 * 10**9, 2 * 10**9, 12 * 10**9)
    assert predict.model_states(mixed.with_(optimizer="sgd")).optimizer == 4 * 10**9
    assert predict.model_states(mixed.with_(optimizer="momentum")).optimizer == 8 * 10**9


def test_gradients_in_fp32_are_two_bytes_a_parameter_more():
    """18 bytes: Megatron-LM and DeepSpeed sum gradients in fp32."""
    wide = Setup(10**9, precision="mixed", gradients="fp32")
    states = predict.model_states(wide)
    assert (states.parameters, states.gradients, states.optimizer) == (2 * 10**9, 4 * 10**9, 12 * 10**9)
    assert states.total == 18 * 10**9
    assert predict.model_states(wide.with_(batch_size=8, data=8)) == states  # plain data parallelism splits nothing
    in_fp32 = Setup(10**9, gradients="fp32")
    assert predict.model_states(in_fp32) == predict.model_states(in_fp32.with_(gradients="same"))


def test_published_states():
    """Rajbhandari et al. 2020, §3.1: "a 1.5 billion parameter GPT-2 … at least 24 GB"; Figure 1: 7.5 B need 120 GB."""
    assert predict.model_states(Setup(1.5e9, precision="mixed")).total.to("GB") == 24
    assert predict.model_states(Setup(7.5e9, precision="mixed")).total.to("GB") == 120
    assert predict.model_states(Setup(zoo.GPT2_XL, optimizer="sgd")).parameters == 4 * predict.parameters(zoo.GPT2_XL)


# ---- activations ---------------------------------------------------------------------------------------------------


def saved_bytes(config: GPTConfig, batch_size: int, seq: int) -> int:
    """What autograd saves in a forward pass with loss, without `measure`."""
    model, saved = GPT(config), []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return saved[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(*batch_of(config, batch_size, seq))
    assert loss.requires_grad
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    blocks = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    return sum(nbytes for address, nbytes in blocks.items() if address not in parameters)


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_activations_are_exact_for_every_variant(switches, heads, batch_size):
    config = GPTConfig(2, 16, heads, 31, 32, **switches)
    assert predict.activations(Setup(config, batch_size, 24)) == saved_bytes(config, batch_size, 24)


@pytest.mark.parametrize("switches", FOLLOWED, ids=str)
def test_the_list_is_what_the_simulated_step_keeps(switches):
    """`peak` follows births and deaths, `activations` lists what is kept: on both devices, in both widths."""
    for (device, precision), (heads, rows) in itertools.product(
        itertools.product(("cpu", "cuda"), ("fp32", "bf16")), ((1, 1), (1, 3), (2, 1), (2, 3))
    ):
        config = GPTConfig(2, 16, heads, 31, 32, **switches)
        setup = Setup(config, rows, 24, precision=precision, device=device)
        ledger = Ledger()
        StepLifetimes(setup, ledger).forward()
        assert predict.activations(setup) == ledger.alive["activations"]


def test_the_formula_of_the_docstring():
    layers, width, heads, vocab, batch, seq = 3, 32, 4, 50, 5, 24
    config = GPTConfig(layers, width, heads, vocab, context=40)
    bs = batch * seq
    per_layer = 8 * bs * width + 2 * bs * 4 * width + bs * heads * seq + 4 * bs
    floats = layers * per_layer + 2 * bs * width + 2 * bs + bs * vocab
    integers = 8 * bs + 8 * bs + 8 * seq  # tokens, targets, positions
    masks, divisor = layers * seq**2, 4
    assert predict.activations(Setup(config, batch, seq)) == 4 * floats + integers + masks + divisor


def test_attention_written_out_keeps_the_scores():
    """Per layer, B·H·S² floats and S² booleans more than the kernel, which keeps B·H·S floats instead."""
    batch, seq, heads = 3, 24, 2
    explicit, fused = (
        predict.activations(Setup(GPTConfig(2, 16, heads, 31, 32, attention=a), batch, seq))
        for a in ("explicit", "fused")
    )
    assert explicit - fused == 2 * (4 * batch * heads * seq**2 + seq**2 - 4 * batch * heads * seq)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize(("batch", "seq", "heads"), [(3, 40, 4), (1, 40, 2), (2, 200, 1)])
def test_tiled_attention_keeps_what_the_kernel_keeps(positions, batch, seq, heads):
    """q, k, v, the output and a number a row, to the byte, in several tiles of 128 too."""
    config = GPTConfig(2, 16, heads, 31, 200, positions=positions, attention="tiled")
    assert predict.activations(Setup(config, batch, seq)) == saved_bytes(config, batch, seq)


def test_the_papers_estimate():
    """Korthikanti et al. 2022, eq. 1 and Table 2's rows without parallelism."""
    h, a, s, b, layers = 12_288, 96, 2048, 1, 96  # GPT-3
    setup = Setup(zoo.GPT3_175B, b, s, precision="mixed")
    assert predict.activations_paper(setup) == layers * s * b * h * (34 + 5 * a * s // h)
    assert predict.activations_paper(setup.with_(recompute="selective")) == layers * 34 * s * b * h
    assert predict.activations_paper(setup.with_(recompute="full")) == layers * 2 * s * b * h
    share = 5 * a * s / h / (34 + 5 * a * s / h)
    assert round(100 * share) == 70  # §5: "recomputing … saves 70 % of activations" for GPT-3


# ---- peak ----------------------------------------------------------------------------------------------------------


def measured_peak(config, batch_size, seq, optimizer, first_step):
    model = GPT(config)
    made = MAKE[optimizer](model.parameters()) if optimizer else torch.optim.SGD(model.parameters(), lr=0.1)
    batch = batch_of(config, batch_size, seq)
    if not first_step:
        train_step(model, made, batch)
    with measure.memory(model, made, batch) as record:
        train_step(model, made, batch)
    return record


def random_cases(n: int) -> list[tuple[Any, ...]]:
    chosen = random.Random(0)
    cases = []
    for switches in chosen.choices(FOLLOWED, k=n):
        heads = chosen.choice([1, 2, 4])
        config = GPTConfig(
            layers=chosen.choice([1, 2, 3]),
            width=heads * chosen.choice([4, 8, 16]),
            heads=heads,
            vocab_size=chosen.choice([11, 64, 500]),
            context=chosen.choice([64, 100]),
            ffn_width=chosen.choice([None, 8, 100]),
            **switches,
        )
        cases.append(
            (
                config,
                chosen.choice([1, 2, 5]),
                chosen.choice([2, 16, 64]),
                chosen.choice([*MAKE]),
                chosen.random() < 0.3,
            )
        )
    return cases


@pytest.mark.parametrize(("config", "batch_size", "seq", "optimizer", "first_step"), random_cases(120))
def test_the_peak_is_exact_in_every_category(config, batch_size, seq, optimizer, first_step):
    record = measured_peak(config, batch_size, seq, optimizer, first_step)
    predicted = predict.peak(Setup(config, batch_size, seq, optimizer=optimizer), first_step)
    assert dict(predicted) == dict(record.peak) and predicted.phase == record.peak_phase


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("heads", "batch_size", "seq"), [(2, 2, 300), (3, 2, 129), (1, 2, 257), (2, 1, 384), (2, 2, 2)]
)
def test_the_peak_inside_of_tiles_is_exact(precision, heads, batch_size, seq):
    """Tiles that divide the sequence and tiles that do not, heads that are copied and heads that are views."""
    config = GPTConfig(2, 8 * heads, heads, 11, seq, attention="tiled")
    model = GPT(config, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[precision])
    sgd, batch = MAKE["sgd"](model.parameters()), batch_of(config, batch_size, seq)
    train_step(model, sgd, batch)
    with measure.memory(model, sgd, batch) as record:
        train_step(model, sgd, batch)
    setup = Setup(config, batch_size, seq, optimizer="sgd", precision=precision)
    assert dict(predict.peak(setup)) == dict(record.peak)


def test_the_peak_of_a_long_text_grows_by_its_tokens():
    """Between 20 and 40 tiles nothing but what the pass itself has: no table of tokens × tokens."""
    peaks = [
        predict.peak(Setup(GPTConfig(2, 16, 2, 11, seq, attention="tiled"), 1, optimizer="sgd")).total
        for seq in (2560, 5120, 7680)
    ]
    assert peaks[2] - peaks[1] == peaks[1] - peaks[0]


def test_the_peaks_of_the_grid_lie_in_all_three_phases():
    phases = {
        predict.peak(Setup(config, batch_size, seq, optimizer=optimizer), first_step).phase
        for config, batch_size, seq, optimizer, first_step in random_cases(120)
    }
    assert phases == {"forward", "backward", "optimizer step"}


@pytest.mark.parametrize(
    ("sizes", "batch_size", "phase"),
    [
        ({"layers": 4, "width": 128, "heads": 4, "vocab_size": 256, "context": 128}, 8, "backward"),
        ({"layers": 2, "width": 64, "heads": 4, "vocab_size": 64, "context": 16, "tied": False}, 1, "optimizer step"),
    ],
    ids=["lesson 00", "a batch so small that Adam is the peak"],
)
def test_the_peak_of_lesson_sized_models(sizes, batch_size, phase):
    config = GPTConfig(**sizes)
    predicted = predict.peak(Setup(config, batch_size))
    assert dict(predicted) == dict(measured_peak(config, batch_size, config.context, "adam", False).peak)
    assert predicted.phase == phase


def test_everything_that_is_born_dies_in_the_end():
    for switches in FOLLOWED:
        config, ledger = GPTConfig(3, 16, 2, 31, 32, **switches), Ledger()
        step = StepLifetimes(Setup(config, 3, 24), ledger)
        step.forward()
        step.backward()
        batch_and_loss = 2 * 8 * 3 * 24 + 4
        assert ledger.alive["activations"] == 0 and ledger.alive["temporaries"] == batch_and_loss
        assert ledger.alive["gradients"] == 4 * predict.parameters(config)


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: predict.model_states(Setup(10**9, tensor=2)), "tensor=2, .* cut layers, and 1,000,000,000 parameters"),
        (lambda: predict.activations(Setup(zoo.GOPHER_280B)), "relative positions keep tensors of their own"),
        (lambda: predict.activations(Setup(SWITCH_BASE)), "Switch-Base is an encoder and a decoder"),
        (lambda: predict.peak(Setup(zoo.LLAMA3_8B)), "needs a GPTConfig; given was: Architecture"),
        (lambda: predict.activations(Setup(10**9)), "1,000,000,000 parameters have no layers"),
        (
            lambda: predict.rank_tensors(Setup(SMALL), 0, "temporaries"),
            "a tensor's role is one of .* not 'temporaries'",
        ),
    ],
)
def test_mistakes_are_explained(call, message):
    with pytest.raises(ValueError, match=message):
        call()
