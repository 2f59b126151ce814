"""A whole GPT, or a pipeline stage of one, under tensor parallelism: the model's own code, with layers that are cut.

    model = ParallelGPT(gpt, group)            # the same numbers, cut; every rank of the group calls
    loss = model(inputs, targets)              # the whole batch on every rank, the same loss on every rank
    loss.backward()                            # each rank: the gradients of its own parts

The head is cut like the embedding whose matrix it may be: by width, so each rank has a part of every logit's sum, and
the logits are summed whole. That is exact and simple, and for a large vocabulary it is the most expensive message of
the step.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_lib.collectives.operators import (
    Group,
    all_gather,
    all_to_all_dims,
    f_bar,
    g_bar,
    gather_from_group,
    own_part,
    scatter_to_group,
)
from course_lib.model.gpt import GPT
from course_lib.parallel.tensor import SEQ, WIDTH, Sharding, SplitDropout, add_up_gradients, cut_block, loss_of_parts
from course_lib.pipeline.stages import GPTStage


class ParallelEmbedding(nn.Module):
    """Some of the features of every entry, of a table (entries, width) that an embedding or an untied head has."""

    def __init__(self, embedding: nn.Embedding | nn.Linear, group: Group = None) -> None:
        super().__init__()
        self.shardings = {"weight": Sharding(1)}
        self.weight = nn.Parameter(own_part(embedding.weight.detach(), 1, group), embedding.weight.requires_grad)

    def forward(self, entries: Int[Tensor, "*dims"]) -> Float[Tensor, "*dims width"]:
        """This rank's features of each entry."""
        return F.embedding(entries, self.weight)


class ParallelGPT(GPT):
    """The course's GPT, cut over the ranks of a group. All ranks must call it with the same tokens.

    Bytes sent by each rank besides the blocks' (`cut_block`): an all-gather of the embedded tokens, and an all-reduce
    of the logits; backward, an all-gather of the last stream's gradient. With `sequence_parallel` an all-to-all of the
    embedded tokens and one of the last stream, in both passes, and a reduce-scatter of the logits, whose gradient is
    gathered again.

    Args:
        gpt: the unsplit model, built alike on every rank; it stays as it is.
        group: the ranks that share the model; None for all.
        sequence_parallel: cut the stream along the sequence. The sequence's length must then divide, too.

    Raises:
        ValueError: heads, hidden features or width do not divide by the number of ranks.
    """

    def __init__(self, gpt: GPT, group: Group = None, sequence_parallel: bool = False) -> None:
        nn.Module.__init__(self)
        vars(self).update(vars(copy.deepcopy(gpt)))  # all its layers and settings, in memory of their own
        self.group, self.sequence_parallel = group, sequence_parallel
        for name in ("token_embedding", "position_embedding", "head"):  # a stage, or a tied GPT, lacks some of them
            if getattr(self, name) is not None:
                setattr(self, name, ParallelEmbedding(getattr(self, name), group))
        dropout = SplitDropout(gpt.config.dropout, SEQ if sequence_parallel else None, group)
        self.embedding_dropout = dropout  # type: ignore[assignment]
        for block in self.blocks.children():
            cut_block(block, group, sequence_parallel)  # type: ignore[arg-type]
        if sequence_parallel and self.final_norm is not None:
            add_up_gradients(self.final_norm, group)

    def embed(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq_part width"]:
        """The stream: the ranks' features are gathered, or exchanged for this rank's tokens."""
        x_BSd = self.embed_at(tokens, torch.arange(tokens.shape[SEQ], device=tokens.device))
        if self.sequence_parallel:
            return self.embedding_dropout(all_to_all_dims(x_BSd, SEQ, WIDTH, self.group))  # -> (B, s, D)
        return self.embedding_dropout(gather_from_group(x_BSd, WIDTH, self.group))  # -> (B, S, D)

    def logits(self, x: Float[Tensor, "batch seq_part width"]) -> Float[Tensor, "batch seq_part vocab"]:
        """Scores of every vocabulary entry: of all tokens, or of this rank's tokens."""
        x, weight_Vd = self.final_norm(x), (self.token_embedding if self.head is None else self.head).weight
        if self.sequence_parallel:  # (B, s, D) -> (B, S, d) -> a term of (B, S, V) -> (B, s, V)
            return g_bar(F.linear(all_to_all_dims(x, WIDTH, SEQ, self.group), weight_Vd), SEQ, self.group)
        return f_bar(F.linear(scatter_to_group(x, WIDTH, self.group), weight_Vd), self.group)

    def loss(self, logits: Float[Tensor, "batch seq_part vocab"], targets: Tensor) -> Float[Tensor, ""]:
        """Mean cross-entropy over the tokens of all ranks, in nats; the same on every rank."""
        if not self.sequence_parallel:
            return super().loss(logits, targets)
        return loss_of_parts(logits, own_part(targets, SEQ, self.group), targets, self.group)

    def logits_or_loss(self, x: Float[Tensor, "batch seq_part width"], targets: Tensor | None) -> Tensor:
        """The end of the forward pass, whole on every rank: logits, or with targets the loss."""
        end = super().logits_or_loss(x, targets)
        return gather_from_group(end, SEQ, self.group) if self.sequence_parallel and targets is None else end


class ParallelStage(ParallelGPT, GPTStage):
    """Some consecutive layers of a GPT, each cut over the ranks of a group, which must all call the stage alike.

    With `sequence_parallel` the stream is cut along the sequence from stage to stage, too. Bytes sent by each rank:
    those of `cut_block` for each block, and of the ends of a `ParallelGPT` that the stage has.

    `tied_weight` is this rank's features, the same as at the other end on the rank with the same part of every layer.
    `gpt` is a `GPTStage`; the arguments are those of `ParallelGPT`.
    """

    def recv_buffer(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq_part width"]:
        """Memory for the stream from the stage before, or for its gradient."""
        whole = super().recv_buffer(tokens)
        return own_part(whole, SEQ, self.group) if self.sequence_parallel else whole


def shardings(model: nn.Module) -> dict[str, Sharding]:
    """The sharding of each parameter that is cut, by name; all others are whole on every rank."""
    return {
        f"{prefix}.{name}".removeprefix("."): sharding
        for prefix, module in model.named_modules()
        for name, sharding in getattr(module, "shardings", {}).items()
        if getattr(module, name) is not None  # a layer without a bias
    }


@torch.no_grad()
def whole_state_dict(model: ParallelGPT) -> dict[str, Tensor]:
    """All weights as the unsplit model names and shapes them, on every rank. All ranks must call.

    Bytes sent by each rank: (t-1)/t of the model's.
    """
    known = shardings(model)
    return {
        name: _joined(parameter, known[name], model.group) if name in known else parameter.detach().clone()
        for name, parameter in model.named_parameters()
    }


def _joined(part: Tensor, cut: Sharding, group: Group) -> Tensor:
    """The whole of a tensor that was cut in blocks: block by block, each from all ranks."""
    return torch.cat([all_gather(block, cut.dim, group) for block in part.chunk(cut.blocks, cut.dim)], cut.dim)
