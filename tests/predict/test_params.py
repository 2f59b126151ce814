"""Parameters as predicted, against a walk over the tensors of a model that was built."""

from dataclasses import replace
from itertools import product

import pytest

from course_kit.units import Count
from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.predict import Setup

BASE = GPTConfig(layers=3, width=24, heads=4, vocab_size=50, context=20)
SHAPES = [
    replace(BASE, norm=norm, positions=positions, bias=bias, tied=tied, ffn_width=ffn_width)
    for norm, positions, bias, tied, ffn_width in product(
        ("layernorm", "rmsnorm"), ("learned", "rotary"), (True, False), (True, False), (None, 70)
    )
]


@pytest.mark.parametrize("config", SHAPES)
def test_formula_equals_the_walk_over_the_tensors(config: GPTConfig) -> None:
    count = predict.parameters(config)
    assert count == sum(p.numel() for p in GPT(config).parameters())
    assert isinstance(count, Count)


@pytest.mark.parametrize("config", SHAPES)
def test_the_list_names_the_tensors_in_the_models_order(config: GPTConfig) -> None:
    real = [(name, p.numel()) for name, p in GPT(config, device="meta").named_parameters()]
    listed = predict.rank_tensors(Setup(config), 0, "parameters")
    assert [(each.name, each.elements) for each in listed] == real


def test_the_printed_formula() -> None:
    layers, d, vocab, seq = 3, 24, 50, 20
    assert predict.parameters(BASE) == 12 * layers * d**2 + 13 * layers * d + (vocab + seq) * d + 2 * d


def test_a_row_and_its_config_are_the_same_shape() -> None:
    for row in zoo.ALL:
        assert predict.parameters(row) == predict.parameters(row.config)


def test_grouped_queries_and_gates_change_what_they_should() -> None:
    llama = zoo.LLAMA3_8B.config
    assert isinstance(llama, zoo.Architecture)
    d, ffn = llama.width, llama.ffn_width
    full, ungated = replace(llama, kv_heads=llama.heads), replace(llama, gated=False)
    assert predict.parameters(full) - predict.parameters(llama) == 32 * 2 * d * (d - d // 4)
    assert predict.parameters(llama) - predict.parameters(ungated) == 32 * d * ffn
