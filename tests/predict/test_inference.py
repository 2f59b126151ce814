"""Bytes without gradients: the cache of a real pass, two neighbours of a chain, and heads in groups."""

from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import nn

from course_kit import measure
from course_kit.units import Bytes
from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPT, Block, GPTConfig
from tests.predict.refused import refused

CONFIG = GPTConfig(layers=3, width=24, heads=4, vocab_size=50, context=20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_formula_counts_the_keys_and_values_of_a_real_pass(dtype: torch.dtype) -> None:
    model, held = GPT(CONFIG, dtype=dtype), []
    for block in cast(list[Block], list(model.blocks)):
        block.attention.qkv.register_forward_hook(lambda _, __, out: held.extend(out.chunk(3, dim=-1)[1:]))
    model(torch.zeros(5, 12, dtype=torch.long))
    predicted = predict.kv_cache(CONFIG, batch_size=5, seq=12, bytes_per_element=dtype.itemsize)
    assert predicted == sum(part.numel() * part.element_size() for part in held)
    assert isinstance(predicted, Bytes)


def test_grouping_divides_the_cache() -> None:
    every_query_its_own = replace(zoo.LLAMA3_70B.config, kv_heads=64)
    assert predict.kv_cache(every_query_its_own, 1, 8192) == 8 * predict.kv_cache(zoo.LLAMA3_70B, 1, 8192)


@pytest.mark.parametrize("layers", [1, 4, 32])
def test_inference_needs_two_buffers_and_training_all(layers: int) -> None:
    net = nn.ModuleList(nn.Linear(64, 64) if i % 2 == 0 else nn.Sigmoid() for i in range(2 * layers))

    def run(training: bool) -> measure.MemoryRecord:
        with torch.set_grad_enabled(training), measure.memory(net) as record:
            x = torch.ones(256, 64)
            for layer in net:
                x = layer(x)
            del x
        return record

    sizes = [4 * 256 * 64] * (2 * layers + 1)
    assert predict.inference_buffers(sizes) == run(False).timeline["temporaries"].max() == 2 * 4 * 256 * 64
    assert run(True).timeline["activations"].max() == (2 * layers + 1 - layers) * 4 * 256 * 64


def test_the_largest_neighbours_count() -> None:
    assert predict.inference_buffers([1, 5, 2, 6, 1]) == 8


test_sizes_that_cannot_be_are_refused = refused(
    *(
        (lambda wrong=wrong: predict.kv_cache(CONFIG, **{"batch_size": 1, "seq": 1} | wrong), "must not be negative")
        for wrong in ({"batch_size": -1}, {"seq": -1}, {"bytes_per_element": -2})
    ),
    (lambda: predict.inference_buffers([8, -4]), "smallest=-4"),
    (lambda: predict.inference_buffers([1]), "at least one result"),
)
