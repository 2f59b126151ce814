from typing import cast

import pytest
import torch

from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPT, Block, GPTConfig
from course_lib.units import Bytes

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
    full = predict.kv_cache(zoo.LLAMA3_70B, 1, 8192, kv_heads=64)
    assert full == 8 * predict.kv_cache(zoo.LLAMA3_70B, 1, 8192)
    assert full == 64 * predict.kv_cache(zoo.LLAMA3_70B, 1, 8192, kv_heads=1)


@pytest.mark.parametrize("kv_heads", [0, 3, 8, -1])
def test_impossible_groups_are_refused(kv_heads: int) -> None:
    with pytest.raises(ValueError, match="4 query heads do not split"):
        predict.kv_cache(CONFIG, 1, 1, kv_heads=kv_heads)
