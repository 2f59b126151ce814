"""Packed rows: whose token, at which position; nothing passes from one document to another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from course_lib.data.packing import document_mask, packed_row
from course_lib.model.gpt import GPT, GPTConfig, rotate
from tests.predict.refused import refused

LENGTHS = [3, 5, 1, 8, 4]


def test_rows_together_are_the_stream() -> None:
    rows = [packed_row(LENGTHS, sample, 7) for sample in range(3)]
    documents = torch.cat([row.document_S for row in rows]).tolist()
    positions = torch.cat([row.position_S for row in rows]).tolist()
    assert documents == [number for number, length in enumerate(LENGTHS) for _ in range(length)]
    assert positions == [place for length in LENGTHS for place in range(length)]


test_a_row_that_there_is_not_is_refused = refused(
    *(
        (lambda lengths=lengths, sample=sample: packed_row(lengths, sample, 7), "does not lie within (21|0) tokens")
        for lengths, sample in ((LENGTHS, 3), (LENGTHS, -1), ([], 0))
    )
)


def test_the_mask_is_causal_and_keeps_documents_apart() -> None:
    document_S = packed_row(LENGTHS, 0, 9).document_S
    mask_SS = document_mask(document_S)
    due = [[k <= q and document_S[k] == document_S[q] for k in range(9)] for q in range(9)]
    assert mask_SS.tolist() == [[bool(each) for each in row] for row in due]
    assert mask_SS.nbytes == 81


@pytest.mark.parametrize("apart", [True, False])
def test_the_gradient_across_documents_is_exactly_zero(apart: bool) -> None:
    """With the mask the loss of each document reaches no vector of another one; without it, every earlier one."""
    config = GPTConfig(layers=2, width=16, heads=2, vocab_size=32, context=17, positions="rotary", attention="fused")
    model, row = GPT(config, dtype=torch.float64), packed_row(LENGTHS, 0, 17)
    tokens_BS = torch.arange(17)[None] % 32

    def attend(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=document_mask(row.document_S))

    for block in model.blocks if apart else []:
        block.attention.fused = attend  # type: ignore[union-attr]
    for document in range(4):
        x = model.embed(tokens_BS).detach().requires_grad_()
        mine = row.document_S == document
        model.logits(model.run_blocks(x))[:, mine].logsumexp(-1).sum().backward()
        assert x.grad is not None and (x.grad[:, mine] != 0).any()
        assert bool((x.grad[:, ~mine] != 0).any()) == (not apart and document > 0)


def test_positions_begin_anew_with_each_document() -> None:
    """Rotated by the row's positions, a document's queries and keys are those that it has alone."""
    x = torch.randn(1, 1, 9, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    row = packed_row(LENGTHS, 0, 9)
    assert torch.equal(rotate(x, row.position_S)[:, :, 3:8], rotate(x[:, :, 3:8]))
