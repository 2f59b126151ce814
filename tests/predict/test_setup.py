"""A setup: what it refuses, what follows from it, and what a student reads."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from course_lib.model import zoo
from course_lib.model.gpt import GPTConfig
from course_lib.model.zoo import MIXTRAL_8X7B, SWITCH_BASE
from course_lib.predict import Setup
from tests.predict.refused import refused

SMALL = GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=128)
PLAIN = Setup(SMALL, batch_size=8)


def test_a_model_alone_is_a_setup() -> None:
    assert Setup(SMALL, 8, 128, precision="fp32", optimizer="adam", recompute="none", device="cpu") == PLAIN
    assert (PLAIN.seq, PLAIN.rows_per_pass, PLAIN.micro_batches, PLAIN.world_size) == (128, 8, 1, 1)
    assert Setup(zoo.GPT2_XL).config is zoo.GPT2_XL.config and Setup(zoo.LLAMA3_8B).seq == 8192
    assert Setup(1.5e9).config == 1_500_000_000 and isinstance(Setup(1.5e9).config, int)


def test_a_changed_copy_leaves_the_first_one_alone() -> None:
    lean = PLAIN.with_(precision="mixed", recompute="full")
    assert (lean.precision, lean.recompute, lean.batch_size) == ("mixed", "full", 8)
    assert (PLAIN.precision, PLAIN.recompute) == ("fp32", "none")
    assert lean.with_(precision="fp32", recompute="none") == PLAIN and hash(lean) != hash(PLAIN)
    with pytest.raises(FrozenInstanceError):
        PLAIN.batch_size = 4  # type: ignore[misc]


def test_a_repr_says_what_differs_from_the_defaults() -> None:
    config = "GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=128)"
    assert repr(PLAIN) == f"Setup({config}, batch_size=8, seq=128)"
    lean = PLAIN.with_(recompute="full", recompute_every=2, optimizer=None, data=2, zero=1)
    assert repr(lean) == (
        f"Setup({config}, batch_size=8, seq=128, optimizer=None, recompute='full', recompute_every=2, data=2, zero=1)"
    )
    assert eval(repr(lean)) == lean
    assert repr(Setup(zoo.GPT3_175B, tensor=8)) == "Setup(GPT-3 175B, seq=2048, tensor=8)"
    assert repr(Setup(replace(SMALL, attention="fused"))).startswith(f"Setup({config[:-1]}, attention='fused'), seq=")
    assert repr(Setup(7.5e9, precision="mixed")) == "Setup(7,500,000,000 parameters, precision='mixed')"


def test_a_rank_has_its_share_of_the_batch_in_pieces() -> None:
    many = PLAIN.with_(batch_size=40, data=4, tensor=2, pipeline=2, micro_batch=4)
    assert (many.rows_per_pass, many.micro_batches, many.world_size) == (4, 3, 16)  # 10 sequences: 4, 4 and 2
    assert many.with_(micro_batch=99).rows_per_pass == 10
    assert many.with_(micro_batch=None).micro_batches == 1


@pytest.mark.parametrize(
    ("precision", "gradients", "widths"),
    [("fp32", "same", (4, 4)), ("mixed", "same", (2, 2)), ("bf16", "fp32", (2, 4)), ("mixed", "fp32", (2, 4))],
)
def test_widths(precision: Any, gradients: Any, widths: tuple[int, int]) -> None:
    setup = PLAIN.with_(precision=precision, gradients=gradients)
    assert (setup.weight_bytes, setup.gradient_bytes) == widths


AXES = ("tensor", "pipeline", "data", "context", "expert")
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"recompute": True}, "recompute=True: it must be one of 'none', 'selective', 'full'"),
    ({"recompute": "some"}, "recompute='some'"),
    ({"precision": "fp8"}, "precision='fp8': it must be one of 'fp32', 'mixed', 'bf16'"),
    ({"gradients": "bf16"}, "gradients='bf16'"),
    ({"optimizer": "lion"}, "optimizer='lion': it must be one of 'sgd', 'momentum', 'adam', None"),
    ({"device": "gpu"}, "device='gpu'"),
    ({"zero": 4}, "zero=4: it must be one of 0, 1, 2, 3"),
    ({"zero": True}, "zero=True"),
    ({"sequence_parallel": 1}, "sequence_parallel=1: it must be one of False, True"),
    *(
        ({name: wrong}, f"{name}={wrong!r}: it must be an integer, at least 1")
        for name in (*AXES, "batch_size", "seq", "micro_batch", "recompute_every")
        for wrong in (0, -1, 2.0, True)
    ),
    ({"recompute_every": 2}, "recompute_every=2 is for recompute=\"full\", not 'none'"),
    ({"seq": 129}, "seq=129 is longer than the model's context of 128"),
    ({"data": 3}, "batch_size=8 does not split into data=3 equal parts"),
    ({"context": 3}, "seq=128 does not split into context=3 equal parts"),
    ({"tensor": 8}, "heads=4 does not split into tensor=8 equal parts"),
    ({"tensor": 4, "config": replace(SMALL, ffn_width=6)}, "mlp_width=6 does not split into tensor=4 equal parts"),
    ({"tensor": 16, "config": zoo.LLAMA3_8B, "seq": 16}, "kv_heads=8 does not split into tensor=16 equal parts"),
    ({"seq": 126, "tensor": 4, "sequence_parallel": True}, "seq=126 does not split into tensor=4 equal parts"),
    (
        {"seq": 4, "context": 2, "tensor": 4, "sequence_parallel": True},
        "seq=4 does not split into context=2 · tensor=4",
    ),
    (
        {"data": 2, "expert": 8, "config": MIXTRAL_8X7B},
        "batch_size=8 does not split into data=2 · expert=8 equal parts",
    ),
    ({"expert": 2}, "expert=2 shares experts; GPTConfig(layers=4, "),
    ({"expert": 3, "batch_size": 9, "config": MIXTRAL_8X7B}, "experts=8 does not split into expert=3 equal parts"),
    ({"config": MIXTRAL_8X7B, "tensor": 2, "sequence_parallel": True}, "sequence_parallel with experts"),
    ({"config": SWITCH_BASE, "pipeline": 2}, "Switch-Base is an encoder and a decoder with a stream each: pipeline=2"),
    (
        {"config": 10**9, "pipeline": 2},
        "tensor=1, pipeline=2, expert=1 cut layers, and 1,000,000,000 parameters have none",
    ),
    (
        {"zero": 1, "precision": "bf16"},
        'zero=1 with precision="bf16": under 16-bit weights, ZeRO here keeps an fp32 copy',
    ),
    ({"pipeline": 5}, "pipeline=5 needs a layer for each stage; the model has 4"),
    ({"config": 0.9}, "config=0.9: give a GPTConfig, a row of the zoo, or a number of parameters"),
    ({"config": 0}, "config=0: "),
    ({"config": -1}, "config=-1: "),
    ({"config": float("inf")}, "config=inf: "),
    ({"config": True}, "config=True: "),
    ({"config": "GPT-2"}, "config='GPT-2': "),
    ({"batch": 4, "sequence": 1}, "a Setup has no batch, sequence; it has config, batch_size, seq, micro_batch"),
]


test_what_cannot_be_is_refused = refused(
    *((lambda changes=changes: PLAIN.with_(**changes), re.escape(words)) for changes, words in REFUSED)
)


@pytest.mark.parametrize(
    ("changes", "known", "words"),
    [
        ({"tensor": 2, "data": 8}, ("data",), "a formula does not hold for tensor=2"),
        ({"zero": 3, "sequence_parallel": True}, (), "zero=3, sequence_parallel=True"),
        ({"pipeline": 4, "context": 2}, ("tensor",), "pipeline=4, context=2"),
    ],
)
def test_a_formula_for_one_rank_refuses_many(changes: dict[str, Any], known: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PLAIN.with_(**changes).refuse_parallel("a formula", *known)
    PLAIN.with_(**changes).refuse_parallel("a formula", *changes)
    PLAIN.with_(micro_batch=1, recompute="full").refuse_parallel("a formula")
