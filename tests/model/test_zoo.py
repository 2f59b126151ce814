"""Published models: the formula gives the published count, and every row says where it comes from."""

import pytest

from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPT, GPTConfig


@pytest.mark.parametrize("row", zoo.ALL, ids=lambda row: row.name)
def test_a_row_has_its_published_count_and_says_where_it_comes_from(row: zoo.Published) -> None:
    """Our GPT's shape is built, too: on "meta" even 530 billion parameters take no memory."""
    assert predict.parameters(row) == pytest.approx(row.parameters, rel=row.tolerance, abs=0)
    assert len(row.source) > 20 and row.config.width % row.config.heads == 0
    if isinstance(row.config, GPTConfig):
        built = sum(p.numel() for p in GPT(row.config, device="meta").parameters())
        assert built == predict.parameters(row)


def test_families_are_complete() -> None:
    """All of GPT-2, GPT-3 and Llama; of Gopher's six, the three that could be read somewhere."""
    names = [row.name for row in zoo.ALL]
    assert len(names) == len(set(names)) == 4 + 8 + 3 + 1 + 1 + 1 + 3 + 3


def test_heads_and_contexts_of_llamas_are_those_of_their_released_configs() -> None:
    """No count of parameters tells them: config.json of each release does."""
    told = {
        zoo.LLAMA2_7B: (32, 32, 4096), zoo.LLAMA2_13B: (40, 40, 4096), zoo.LLAMA2_70B: (64, 8, 4096),
        zoo.LLAMA3_8B: (32, 8, 8192), zoo.LLAMA3_70B: (64, 8, 8192), zoo.LLAMA3_405B: (128, 8, 8192),
    }  # fmt: skip
    for row, sizes in told.items():
        assert isinstance(row.config, zoo.Architecture)
        assert (row.config.heads, row.config.kv_heads, row.config.context) == sizes, row.name
