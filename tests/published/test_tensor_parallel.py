"""The sizes of Megatron-LM's models, computed again by this library; what their ranks send is in `model_parallel.json`.

`tensor_parallel.json` holds each figure; see `rows.py`.
"""

import pytest

from course_lib import predict
from course_lib.model.gpt import GPTConfig

from .rows import rows_of, within

ROWS = rows_of(__file__)


def billions(layers: int, width: int, heads: int, context: int) -> float:
    """Megatron-LM pads its vocabulary to 51,200."""
    return predict.parameters(GPTConfig(layers, width, heads, vocab_size=51_200, context=context)) / 1e9


@pytest.mark.parametrize("name", ROWS)
def test_published_figure(name: str) -> None:
    assert billions(**ROWS[name]["inputs"]) == within(ROWS[name])
