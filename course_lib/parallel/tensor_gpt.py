"""A whole GPT under tensor parallelism: the parts of `parallel.tensor`, and an embedding that is cut by width.

    model = ParallelGPT.from_(gpt, group)      # the same numbers, cut; every rank of the group calls
    loss = model(inputs, targets)              # the whole batch on every rank, the same loss on every rank
    loss.backward()                            # each rank: the gradients of its own parts

The head is cut like the embedding whose matrix it may be: by width, so each rank has a part of every logit's sum, and
the logits are summed whole. That is exact and simple, and for a large vocabulary it is the most expensive message of
the step.
"""

from __future__ import annotations

import copy
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_lib.collectives.operators import Group, all_gather, f_bar, g_bar, join, own_part, split, turn
from course_lib.model.gpt import GPT, Block, GPTConfig, loss_of
from course_lib.parallel.tensor import (
    SEQ,
    WIDTH,
    Cut,
    ParallelAttention,
    ParallelMLP,
    SplitDropout,
    add_up_gradients,
    loss_of_parts,
)
from course_lib.pipeline.stages import GPTStage


class ParallelBlock(nn.Module):
    """A block whose attention and MLP are cut; the stream between them is whole, or cut along the sequence.

    Bytes sent by each rank, with n the stream's bytes and t ranks: 4 all-reduces of n, two in each pass; with
    `sequence_parallel` 2 all-gathers and 2 reduce-scatters of n in the forward pass, which is as much, and in the
    backward pass 2 all-gathers more, since only parts are kept.
    """

    attention_norm: nn.Module
    attention: ParallelAttention
    mlp_norm: nn.Module
    mlp: ParallelMLP

    @classmethod
    def from_(cls, block: Block, group: Group = None, sequence_parallel: bool = False) -> Self:
        """Cut by heads and by hidden features; the norms stay whole.

        Raises:
            ValueError: heads or features do not divide.
        """
        self = cls()
        self.attention_norm = copy.deepcopy(block.attention_norm)
        self.attention = ParallelAttention.from_(block.attention, group, sequence_parallel)
        self.mlp_norm = copy.deepcopy(block.mlp_norm)
        self.mlp = ParallelMLP.from_(block.mlp, group, sequence_parallel)
        if sequence_parallel:
            add_up_gradients(self.attention_norm, group)
            add_up_gradients(self.mlp_norm, group)
        return self

    def forward(self, x: Float[Tensor, "batch seq width"]) -> Float[Tensor, "batch seq width"]:
        """One layer of the stream."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class ParallelEmbedding(nn.Module):
    """Each rank has some of the features of every entry."""

    weight: nn.Parameter
    cuts: dict[str, Cut]

    @classmethod
    def from_(cls, embedding: nn.Embedding | nn.Linear, group: Group = None) -> Self:
        """Cut a table [entries, width] by width; an untied head's matrix is such a table.

        Raises:
            ValueError: the width does not divide.
        """
        self = cls()
        self.cuts = {"weight": Cut(1)}
        self.weight = nn.Parameter(own_part(embedding.weight.detach(), 1, group))
        return self

    def forward(self, entries: Int[Tensor, "*dims"]) -> Float[Tensor, "*dims width"]:
        """This rank's features of each entry."""
        return F.embedding(entries, self.weight)


class ParallelGPT(nn.Module):
    """The course's GPT, cut over the ranks of a group. All ranks must call it with the same tokens.

    Bytes sent by each rank besides the blocks': an all-gather of the embedded tokens, and an all-reduce of the logits;
    backward, an all-gather of the last stream's gradient. With `sequence_parallel` an all-to-all of the embedded tokens
    and one of the last stream, in both passes, and a reduce-scatter of the logits, whose gradient is gathered again.
    """

    config: GPTConfig
    group: Group
    sequence_parallel: bool
    token_embedding: ParallelEmbedding  # None, as the final norm, on a pipeline stage that has none
    position_embedding: ParallelEmbedding | None
    embedding_dropout: SplitDropout
    blocks: nn.ModuleList
    final_norm: nn.Module
    head: ParallelEmbedding | None

    @classmethod
    def from_(cls, gpt: GPT, group: Group = None, sequence_parallel: bool = False) -> Self:
        """Cut a GPT that every rank has built alike.

        Args:
            gpt: stays as it is.
            group: the ranks that share it; None for all.
            sequence_parallel: cut the stream along the sequence. The sequence's length must then divide, too.

        Raises:
            ValueError: heads, hidden features or width do not divide by the number of ranks.
        """
        self = cls()
        self._cut_ends(gpt, group, sequence_parallel)
        blocks: list[Block] = list(gpt.blocks)  # type: ignore[arg-type]
        self.blocks = nn.ModuleList(ParallelBlock.from_(block, group, sequence_parallel) for block in blocks)
        return self

    def _cut_ends(self, gpt: GPT | GPTStage, group: Group, sequence_parallel: bool) -> None:
        """All but the blocks; of a pipeline stage, what it has of it."""
        self.config, self.group, self.sequence_parallel = gpt.config, group, sequence_parallel

        def cut(table: nn.Embedding | nn.Linear | None) -> ParallelEmbedding | None:
            return None if table is None else ParallelEmbedding.from_(table, group)

        self.token_embedding, self.head = cut(gpt.token_embedding), cut(gpt.head)  # type: ignore[assignment]
        self.position_embedding = cut(gpt.position_embedding)
        self.embedding_dropout = SplitDropout(gpt.config.dropout, SEQ if sequence_parallel else None, group)
        self.final_norm = copy.deepcopy(gpt.final_norm)  # type: ignore[assignment]
        if sequence_parallel:
            add_up_gradients(self.final_norm, group)

    def forward(
        self, tokens: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch seq"] | None = None
    ) -> Float[Tensor, "batch seq vocab"] | Float[Tensor, ""]:
        """Logits of the next token at every position; with `targets`, their mean cross-entropy in nats instead."""
        x = self._embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self._predict(x, targets)

    def _embed(self, tokens: Int[Tensor, "batch seq"]) -> Tensor:
        """The stream: features are joined, or turned into this rank's tokens."""
        x_BSd = self.token_embedding(tokens)
        if self.position_embedding is not None:
            x_BSd = x_BSd + self.position_embedding(torch.arange(tokens.shape[1], device=tokens.device))
        x = turn(x_BSd, SEQ, WIDTH, self.group) if self.sequence_parallel else join(x_BSd, WIDTH, self.group)
        return self.embedding_dropout(x)

    def _predict(self, x: Tensor, targets: Int[Tensor, "batch seq"] | None) -> Tensor:
        """Logits or the loss, whole on every rank."""
        logits = self._logits(self.final_norm(x))
        if not self.sequence_parallel:
            return logits if targets is None else loss_of(logits, targets)
        if targets is None:
            return join(logits, SEQ, self.group)
        return loss_of_parts(logits, own_part(targets, SEQ, self.group), targets, self.group)

    def _logits(self, x: Tensor) -> Tensor:
        """Of all tokens, or of this rank's tokens."""
        weight_Vd = (self.token_embedding if self.head is None else self.head).weight
        if not self.sequence_parallel:
            return f_bar(F.linear(split(x, WIDTH, self.group), weight_Vd), self.group)
        x_BSd = turn(x, WIDTH, SEQ, self.group)
        return g_bar(F.linear(x_BSd, weight_Vd), SEQ, self.group)


def cuts(model: nn.Module) -> dict[str, Cut]:
    """How each parameter that is cut is cut, by name; those that are not in it are whole on every rank."""
    return {
        f"{prefix}.{name}".removeprefix("."): cut
        for prefix, module in model.named_modules()
        for name, cut in getattr(module, "cuts", {}).items()
        if getattr(module, name) is not None
    }


@torch.no_grad()
def whole_state_dict(model: ParallelGPT) -> dict[str, Tensor]:
    """All weights as the unsplit model names and shapes them, on every rank. All ranks must call.

    Bytes sent by each rank: (t-1)/t of the model's.
    """
    known = cuts(model)
    return {
        name: _joined(parameter, known[name], model.group) if name in known else parameter.detach().clone()
        for name, parameter in model.named_parameters()
    }


def _joined(part: Tensor, cut: Cut, group: Group) -> Tensor:
    """The whole of a tensor that was cut in blocks: block by block, each from all ranks."""
    return torch.cat([all_gather(block, cut.dim, group) for block in part.chunk(cut.blocks, cut.dim)], cut.dim)
