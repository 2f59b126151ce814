"""What papers print about tensor and context parallelism, computed again by this library.

`tensor_parallel.json` holds each figure; see `rows.py`.
"""

from collections.abc import Callable

import pytest

from course_lib import predict
from course_lib.model.gpt import GPTConfig
from course_lib.parallel.mesh import Mesh

from .rows import rows_of, within

ROWS = rows_of(__file__)


def billions(layers: int, width: int, heads: int, context: int) -> float:
    """Megatron-LM pads its vocabulary to 51,200."""
    return predict.parameters(GPTConfig(layers, width, heads, vocab_size=51_200, context=context)) / 1e9


def elements(b: int, s: int, h: int, t: int) -> float:
    """Four all-reduces of the stream."""
    return 4 * predict.all_reduce(2 * b * s * h, t).bytes / 2


def gpus(**axes: int) -> int:
    return Mesh(axes).size


def computed(name: str) -> Callable[..., float]:
    return {"megatron": elements, "llama3": gpus}.get(name.split("_")[0], billions)


@pytest.mark.parametrize("name", ROWS)
def test_published_figure(name: str) -> None:
    assert computed(name)(**ROWS[name]["inputs"]) == within(ROWS[name])
