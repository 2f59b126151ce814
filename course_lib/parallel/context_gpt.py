"""A GPT whose sequence is cut over ranks: each has all weights, and its own tokens.

    model = ContextParallelGPT.from_(gpt, group)
    loss = model(inputs, targets)      # every rank gives the whole sequence and works on its own tokens
    loss.backward()                    # every rank: the whole gradient

Each rank's gradients are parts of a sum over the tokens, so they are added up like those of data parallelism. What a
block keeps for the backward pass is 1/c of the unsplit one's, and no rank ever holds a row of scores.
"""

from __future__ import annotations

import copy
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_lib.collectives.operators import Group
from course_lib.model.gpt import GPT, Attention, Block, rotate
from course_lib.parallel.context import Order, own_tokens, ring_attention
from course_lib.parallel.tensor import SEQ, add_up_gradients, loss_of_parts


class ContextParallelGPT(nn.Module):
    """The course's GPT on this rank's tokens. All ranks of the group must call it with the same batch.

    Bytes sent by each rank: those of `ring_attention` in every block, and the gradients' all-reduce.
    """

    gpt: GPT
    group: Group
    order: Order

    @classmethod
    def from_(cls, gpt: GPT, group: Group = None, order: Order = "zigzag") -> Self:
        """Copy a GPT that every rank has built alike.

        Args:
            gpt: stays as it is.
            group: the ranks that share the sequence; None for all.
            order: how it is cut.

        Raises:
            ValueError: the GPT has dropout: the ring never holds the weights that would be dropped.
        """
        if gpt.config.dropout:
            raise ValueError(f"dropout={gpt.config.dropout}: the ring never holds attention's weights; take dropout=0")
        self = cls()
        self.gpt, self.group, self.order = copy.deepcopy(gpt), group, order
        add_up_gradients(self.gpt, group)
        return self

    def forward(self, tokens: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch seq"]) -> Float[Tensor, ""]:
        """The mean cross-entropy over all tokens of all ranks, in nats."""
        gpt = self.gpt
        positions_s = own_tokens(torch.arange(tokens.shape[SEQ], device=tokens.device), 0, self.order, self.group)
        x_BsD = gpt.token_embedding(own_tokens(tokens, SEQ, self.order, self.group))
        if gpt.position_embedding is not None:
            x_BsD = x_BsD + gpt.position_embedding(positions_s)
        blocks: list[Block] = list(gpt.blocks)  # type: ignore[arg-type]
        for block in blocks:
            x_BsD = x_BsD + self._attend(block.attention, block.attention_norm(x_BsD), positions_s)
            x_BsD = x_BsD + block.mlp(block.mlp_norm(x_BsD))
        head = gpt.token_embedding if gpt.head is None else gpt.head
        logits_BsV = F.linear(gpt.final_norm(x_BsD), head.weight)
        return loss_of_parts(logits_BsV, own_tokens(targets, SEQ, self.order, self.group), targets, self.group)

    def _attend(self, attention: Attention, x_BsD: Tensor, positions_s: Tensor) -> Tensor:
        """The block's attention, its middle done by the ring."""
        heads = (self.gpt.config.heads, self.gpt.config.head_width)
        q_BHsK, k_BHsK, v_BHsK = (
            part.unflatten(-1, heads).transpose(1, 2) for part in attention.qkv(x_BsD).chunk(3, dim=-1)
        )
        if self.gpt.config.positions == "rotary":
            q_BHsK, k_BHsK = rotate(q_BHsK, positions_s), rotate(k_BHsK, positions_s)
        mixed_BHsK = ring_attention(q_BHsK, k_BHsK, v_BHsK, self.order, self.group)
        return attention.out(mixed_BHsK.transpose(1, 2).flatten(2))
