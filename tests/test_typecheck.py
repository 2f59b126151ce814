"""The tests' own run-time checks: shapes in signatures are executed, and ranks get functions that work."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from course_lib import ranks
from course_lib.model.gpt import GPT, GPTConfig

TINY = GPTConfig(layers=1, width=8, heads=2, vocab_size=16, context=8)


def test_a_wrong_shape_in_a_call_is_found() -> None:
    with pytest.raises(TypeCheckError):
        GPT(TINY)(torch.zeros(3, dtype=torch.int64))  # tokens have a batch dimension


def test_a_wrong_shape_is_the_librarys_own_business_where_a_test_says_so(unchecked_shapes: None) -> None:
    with pytest.raises(Exception) as caught:
        GPT(TINY)(torch.zeros(3, dtype=torch.int64))
    assert not isinstance(caught.value, TypeCheckError)


def test_a_checked_function_can_be_shipped_to_ranks() -> None:
    model = GPT(TINY)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    outputs = ranks.run(model.forward, tokens, world_size=2)
    expected = model(tokens)
    assert all(torch.equal(_first(output), _first(expected)) for output in outputs)


def _first(output: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output
