"""Published models: the formula gives the published count, and every row says where it comes from."""

import pytest

from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPT, GPTConfig


@pytest.mark.parametrize("row", zoo.ALL, ids=lambda row: row.name)
def test_formula_gives_the_published_count(row: zoo.Published) -> None:
    assert predict.parameters(row) == pytest.approx(row.parameters, rel=row.tolerance, abs=0)


@pytest.mark.parametrize("row", zoo.ALL, ids=lambda row: row.name)
def test_every_row_says_where_it_comes_from(row: zoo.Published) -> None:
    assert len(row.source) > 20
    assert row.config.width % row.config.heads == 0


@pytest.mark.parametrize("row", [row for row in zoo.ALL if isinstance(row.config, GPTConfig)], ids=lambda row: row.name)
def test_rows_of_our_gpts_shape_can_be_built(row: zoo.Published) -> None:
    """The formula against the walk over the tensors; on "meta" even 530 billion parameters take no memory."""
    assert isinstance(row.config, GPTConfig)
    assert sum(p.numel() for p in GPT(row.config, device="meta").parameters()) == predict.parameters(row)


def test_families_are_complete() -> None:
    """All of GPT-2, GPT-3 and Llama; of Gopher's six, the three that could be read somewhere."""
    names = [row.name for row in zoo.ALL]
    assert len(names) == len(set(names)) == 4 + 8 + 3 + 1 + 1 + 1 + 3 + 3
