"""Parameters, model states and activations: hand counts, the list beside the simulated step, and published figures."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPTConfig
from course_lib.model.zoo import SWITCH_BASE
from course_lib.predict import Setup
from course_lib.predict.lifetimes.ledger import Ledger
from course_lib.predict.lifetimes.step import StepLifetimes
from tests.predict.refused import refused
from tests.predict.test_meter import FOLLOWED

SMALL = GPTConfig(layers=2, width=16, heads=2, vocab_size=31, context=32)


def test_the_printed_formula():
    layers, d, vocab, seq = 3, 24, 50, 20
    count = predict.parameters(GPTConfig(layers, d, heads=4, vocab_size=vocab, context=seq))
    assert count == 12 * layers * d**2 + 13 * layers * d + (vocab + seq) * d + 2 * d


def test_a_row_and_its_config_are_the_same_shape():
    for row in zoo.ALL:
        assert predict.parameters(row) == predict.parameters(row.config)


def test_grouped_queries_and_gates_change_what_they_should():
    llama = zoo.LLAMA3_8B.config
    assert isinstance(llama, zoo.Architecture)
    d, ffn = llama.width, llama.ffn_width
    full, ungated = replace(llama, kv_heads=llama.heads), replace(llama, gated=False)
    assert predict.parameters(full) - predict.parameters(llama) == 32 * 2 * d * (d - d // 4)
    assert predict.parameters(llama) - predict.parameters(ungated) == 32 * d * ffn


def test_mixed_precision_is_4_bytes_and_the_optimizers_and_gradients_in_fp32_two_more():
    """18 bytes with Adam: Megatron-LM and DeepSpeed sum gradients in fp32. Plain data parallelism splits nothing."""
    for gradients, each in (("same", 2), ("fp32", 4)):
        mixed = Setup(10**9, 8, precision="mixed", gradients=gradients, data=8)  # type: ignore[arg-type]
        for optimizer, state in (("sgd", 4), ("momentum", 8), ("adam", 12)):
            states = predict.model_states(mixed.with_(optimizer=optimizer))
            assert [*states.values()][:3] == [2 * 10**9, each * 10**9, state * 10**9]
    in_fp32 = Setup(10**9, gradients="fp32")
    assert predict.model_states(in_fp32) == predict.model_states(in_fp32.with_(gradients="same"))


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


def test_everything_that_is_born_dies_in_the_end():
    for switches in FOLLOWED:
        config, ledger = GPTConfig(3, 16, 2, 31, 32, **switches), Ledger()
        step = StepLifetimes(Setup(config, 3, 24), ledger)
        step.forward()
        step.backward()
        batch_and_loss = 2 * 8 * 3 * 24 + 4
        assert ledger.alive["activations"] == 0 and ledger.alive["temporaries"] == batch_and_loss
        assert ledger.alive["gradients"] == 4 * predict.parameters(config)


test_mistakes_are_explained = refused(
    (lambda: predict.model_states(Setup(10**9, tensor=2)), "tensor=2, .* cut layers, and 1,000,000,000 parameters"),
    (lambda: predict.activations(Setup(zoo.GOPHER_280B)), "relative positions keep tensors of their own"),
    (lambda: predict.activations(Setup(SWITCH_BASE)), "Switch-Base is an encoder and a decoder"),
    (lambda: predict.activations(Setup(10**9)), "1,000,000,000 parameters have no layers"),
    (
        lambda: predict.rank_tensors(Setup(SMALL), 0, "temporaries"),
        "a tensor's role is one of .* not 'temporaries'",
    ),
)
