"""A GPT whose sequence is cut over ranks: each has all weights, and its own tokens.

    model = ContextParallelGPT(gpt, group)
    loss = model(inputs, targets)      # every rank gives the whole sequence and works on its own tokens
    loss.backward()                    # every rank: the whole gradient

Each rank's gradients are parts of a sum over the tokens, so they are added up like those of data parallelism. What a
block keeps for the backward pass is 1/c of the unsplit one's, and no rank ever holds a row of scores.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_lib.collectives.operators import Group
from course_lib.model.gpt import GPT, Attention, rotate
from course_lib.parallel.context import Order, own_tokens, ring_attention
from course_lib.parallel.tensor import SEQ, add_up_gradients, loss_of_parts


class RingAttention(Attention):
    """Attention of this rank's tokens to the tokens of all ranks, by `ring_attention`, which says the bytes.

    Args:
        attention: its layers become this one's.
        order: how the sequence is cut.
        group: the ranks that share it.
    """

    def __init__(self, attention: Attention, order: Order, group: Group = None) -> None:
        nn.Module.__init__(self)
        vars(self).update(vars(attention))
        self.order: Order = order
        self.group = group

    def attend(self, q_BHsK: Tensor, k_BHsK: Tensor, v_BHsK: Tensor) -> Tensor:
        """The weighted means of this rank's tokens, its middle done by the ring."""
        if self.config.positions == "rotary":
            seq = q_BHsK.shape[-2] * dist.get_world_size(self.group)
            positions_s = own_tokens(torch.arange(seq, device=q_BHsK.device), 0, self.order, self.group)
            q_BHsK, k_BHsK = rotate(q_BHsK, positions_s), rotate(k_BHsK, positions_s)
        return ring_attention(q_BHsK, k_BHsK, v_BHsK, self.order, self.group)


class ContextParallelGPT(GPT):
    """The course's GPT on this rank's tokens. All ranks of the group must call it with the same batch.

    Bytes sent by each rank: those of `ring_attention` in every block, and the gradients' all-reduce.

    Args:
        gpt: every rank has built it alike; it stays as it is.
        group: the ranks that share the sequence; None for all.
        order: how it is cut.

    Raises:
        ValueError: the GPT has dropout: the ring never holds the weights that would be dropped.
    """

    def __init__(self, gpt: GPT, group: Group = None, order: Order = "zigzag") -> None:
        if gpt.config.dropout:
            raise ValueError(f"dropout={gpt.config.dropout}: the ring never holds attention's weights; take dropout=0")
        nn.Module.__init__(self)
        vars(self).update(vars(copy.deepcopy(gpt)))  # all its layers and settings, in memory of their own
        self.group = group
        self.order: Order = order
        for block in self.blocks.children():
            block.attention = RingAttention(block.attention, order, group)  # type: ignore[arg-type]
        add_up_gradients(self, group)

    def embed(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq_part width"]:
        """The stream of this rank's tokens."""
        x_BsD = self.token_embedding(own_tokens(tokens, SEQ, self.order, self.group))
        if self.position_embedding is not None:
            positions = torch.arange(tokens.shape[SEQ], device=tokens.device)
            x_BsD = x_BsD + self.position_embedding(own_tokens(positions, 0, self.order, self.group))
        return x_BsD

    def loss(self, logits_BsV: Float[Tensor, "batch seq_part vocab"], targets: Tensor) -> Float[Tensor, ""]:
        """Mean cross-entropy over the tokens of all ranks, in nats; the same on every rank."""
        return loss_of_parts(logits_BsV, own_tokens(targets, SEQ, self.order, self.group), targets, self.group)
