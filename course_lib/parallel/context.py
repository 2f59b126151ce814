"""Context parallelism: one long sequence on several ranks, and attention that sends keys and values around a ring.

Everything in a block but attention works on each token alone, so each rank computes its own tokens. Attention needs
every earlier token's key and value: they go around the ring, and each rank adds its scores to a softmax that it never
holds whole (online softmax: Milakov and Gimelshein 2018; ring: Liu et al. 2023).

With a causal mask the order matters. Cut the sequence plainly, and the rank with the first tokens has nothing to do in
most steps while the last one always works. `zigzag` cuts it into 2c pieces and gives rank r pieces r and 2c - 1 - r,
one early and one late: then every rank works equally in every step (Llama 3, 2024, §3.3.2). With c = 3:

    queries     rank 0: pieces 0, 5     rank 1: pieces 1, 4     rank 2: pieces 2, 3
    step 0      keys of 0 and 5         keys of 1 and 4         keys of 2 and 3         (a rank's own)
    step 1      keys of 2 and 3         keys of 0 and 5         keys of 1 and 4         (the keys have moved on)
    step 2      keys of 1 and 4         keys of 2 and 3         keys of 0 and 5

Each rank's gradients are parts of a sum over the tokens, so they are added up like those of data parallelism. A block
of `ContextParallelGPT` keeps 1/c of the unsplit block's bytes for the backward pass.

Shape suffixes are those of `model.gpt`; a small s is this rank's part of the sequence.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import Function

from course_lib.collectives.operators import Group
from course_lib.model.gpt import GPT, Attention, rotate
from course_lib.model.tiled_attention import scores_of, without_autocast
from course_lib.parallel.tensor import SEQ, add_up_gradients, loss_of_parts

Order = Literal["plain", "zigzag"]


def pieces(order: Order, ranks: int, rank: int) -> list[int]:
    """The pieces of the sequence that a rank holds, in the order in which they lie in its memory.

    "plain" cuts into as many pieces as there are ranks, "zigzag" into twice as many; other orders are a ValueError.
    """
    if order == "plain":
        return [rank]
    if order == "zigzag":
        return [rank, 2 * ranks - 1 - rank]
    raise ValueError(f"order={order!r}: it must be 'plain' or 'zigzag'")


def own_tokens(whole: Tensor, dim: int, order: Order = "zigzag", group: Group = None) -> Tensor:
    """This rank's part of a tensor whose `dim` is the sequence.

    Raises:
        ValueError: the sequence does not divide into the order's pieces.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    own = pieces(order, ranks, rank)
    count, seq = ranks * len(own), whole.shape[dim]
    if seq % count:
        raise ValueError(f"{seq} tokens do not split into {count} equal pieces ({order}, {ranks} ranks): pad them")
    return torch.cat([whole.chunk(count, dim)[piece] for piece in own], dim)


def work(order: Order, ranks: int) -> list[list[float]]:
    """Scores in each step of the ring (row) on each rank (column), as a share of one rank's full square s²."""

    def share(rank: int, step: int) -> float:
        queries, keys = pieces(order, ranks, rank), pieces(order, ranks, (rank - step) % ranks)
        squares = sum(1.0 if key < query else 0.5 if key == query else 0.0 for query in queries for key in keys)
        return squares / len(queries) ** 2

    return [[share(rank, step) for rank in range(ranks)] for step in range(ranks)]


def ring_attention(
    q_BHsK: Float[Tensor, "batch heads seq head_width"], k_BHsK: Float[Tensor, "batch heads seq head_width"],
    v_BHsK: Float[Tensor, "batch heads seq head_width"], order: Order = "zigzag", group: Group = None,
) -> Float[Tensor, "batch heads seq head_width"]:  # fmt: skip
    """Causal attention of this rank's tokens to the tokens of all ranks. All ranks of the group must call.

    Bytes sent by each rank, with n those of its keys (values have as many) and c ranks: 2n(c-1) forward; backward
    2n(c-1) again, and 2nc for the gradients of keys and values, which travel with them until they are home. Sums are at
    least fp32, under `autocast` too (not under a `CastPolicy`); gradients of keys and values travel, and are added
    up, in the dtype of the keys.

    A rank's tokens are those of `own_tokens`, cut in the same order.
    """
    return _RingAttention.apply(q_BHsK, k_BHsK, v_BHsK, order, group)


class _Pair(NamedTuple):
    """Two pieces of which the queries see the keys."""

    queries: slice  # their place in memory
    keys: slice
    diagonal: bool  # the same piece twice: half of the square is the future


def _pairs(order: Order, ranks: int, rank: int, step: int, seq: int) -> list[_Pair]:
    """The pairs that a rank computes in a step of the ring, in which it holds the keys of rank - step."""
    own, others = pieces(order, ranks, rank), pieces(order, ranks, (rank - step) % ranks)
    length = seq // len(own)
    place = [slice(i * length, (i + 1) * length) for i in range(len(own))]
    every = itertools.product(zip(place, own), zip(place, others))
    return [_Pair(queries, keys, query == key) for (queries, query), (keys, key) in every if key <= query]


class _RingAttention(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, order: Order, group: Group) -> Tensor:
        ranks, rank, seq = dist.get_world_size(group), dist.get_rank(group), q.shape[-2]
        wide = torch.promote_types(q.dtype, torch.float32)  # of the sums; sent and saved tensors keep the given dtype
        wide_q, travelling = q.to(wide), torch.stack([k, v])  # (2, B, H, s, K): one message
        out, log_sum = torch.zeros_like(wide_q), wide_q.new_full(q.shape[:-1], -torch.inf)  # (B, H, s, K), (B, H, s)
        with without_autocast(q.device):  # autocast would narrow the products again
            for step in range(ranks):
                coming = _start_hop(travelling, group) if step < ranks - 1 else None  # on its way while this computes
                keys, values = travelling.to(wide)
                for pair in _pairs(order, ranks, rank, step, seq):
                    queries = (..., pair.queries)
                    scores = _scores(wide_q, keys, pair)
                    _add_to_softmax(out[*queries, :], log_sum[queries], scores, values[..., pair.keys, :])
                if coming:
                    travelling = coming()
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.order, ctx.group = order, group
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, out, log_sum = ctx.saved_tensors
        ranks, rank, seq = dist.get_world_size(ctx.group), dist.get_rank(ctx.group), q.shape[-2]
        wide_q, wide_grad = q.to(log_sum.dtype), grad.to(log_sum.dtype)
        # inner: softmax's backward needs the sum of weight times its gradient, which is grad · out (FlashAttention's D)
        scale, inner = q.shape[-1] ** -0.5, (wide_grad * out).sum(-1, keepdim=True)
        q_grad, travelling = torch.zeros_like(wide_q), torch.stack([k, v])
        grads = torch.zeros_like(travelling)
        with without_autocast(q.device):
            for step in range(ranks):
                coming = _start_hop(travelling, ctx.group) if step < ranks - 1 else None
                all_keys, all_values = travelling.to(log_sum.dtype)
                for pair in _pairs(ctx.order, ranks, rank, step, seq):
                    queries, keys = (..., pair.queries, slice(None)), (..., pair.keys, slice(None))
                    scores = _scores(wide_q, all_keys, pair)
                    weights = (scores - log_sum[..., pair.queries, None]).exp()  # computed again
                    grads[1][keys] += weights.mT @ wide_grad[queries]
                    scores_grad = weights * (wide_grad[queries] @ all_values[keys].mT - inner[queries]) * scale
                    q_grad[queries] += scores_grad @ all_keys[keys]
                    grads[0][keys] += scores_grad.mT @ wide_q[queries]
                grads = _start_hop(grads, ctx.group)()  # follow their keys; after the last step they are home
                if coming:
                    travelling = coming()
        return q_grad.to(q.dtype), grads[0], grads[1], None, None


def _scores(q: Tensor, k: Tensor, pair: _Pair) -> Tensor:
    """q kᵀ / √K of one pair of pieces, the future masked out where it is the same piece twice."""
    scaled = q[..., pair.queries, :] * q.shape[-1] ** -0.5
    return scores_of(scaled, k, pair.queries, pair.keys, q.shape[-2], pair.diagonal)


def _add_to_softmax(out: Tensor, log_sum: Tensor, scores: Tensor, values: Tensor) -> None:
    """Online softmax: mix the values of more keys into a result that is normalised at every moment, in place.

    `log_sum` is the logarithm of the sum of all exponentials so far; the older mix is scaled down as that sum grows.
    """
    grown = torch.logaddexp(log_sum, scores.logsumexp(-1))
    out.mul_((log_sum - grown).exp()[..., None]).add_((scores - grown[..., None]).exp() @ values)
    log_sum.copy_(grown)


def _start_hop(leaving: Tensor, group: Group) -> Callable[[], Tensor]:
    """Begin a step around the ring, to the next rank; the result is a function that waits for the one before's."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if ranks == 1:
        return leaving.clone
    arriving = torch.empty_like(leaving)
    send = dist.P2POp(dist.isend, leaving, group=group, group_peer=(rank + 1) % ranks)
    receive = dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % ranks)
    works = dist.batch_isend_irecv([send, receive])  # as one: NCCL calls one by one could wait in a circle

    def finish() -> Tensor:
        for work in works:
            work.wait()
        return arriving

    return finish


class RingAttention(Attention):
    """A layer of `ring_attention`, with the layers of `attention` before and behind."""

    def __init__(self, attention: Attention, order: Order, group: Group = None) -> None:
        if {"forward", "attend"} & vars(attention).keys():  # such a method is bound to the attention without a ring
            raise ValueError("attention recomputes already: cut the GPT first, then recompute_only(it, RingAttention)")
        nn.Module.__init__(self)
        vars(self).update(vars(attention))
        self.order: Order = order
        self.group = group

    def attend(self, q_BHsK: Tensor, k_BHsK: Tensor, v_BHsK: Tensor) -> Tensor:
        """The weighted means of this rank's tokens, over the tokens of all ranks."""
        if self.config.positions == "rotary":
            seq = q_BHsK.shape[-2] * dist.get_world_size(self.group)
            positions_s = own_tokens(torch.arange(seq, device=q_BHsK.device), 0, self.order, self.group)
            q_BHsK, k_BHsK = rotate(q_BHsK, positions_s), rotate(k_BHsK, positions_s)
        return ring_attention(q_BHsK, k_BHsK, v_BHsK, self.order, self.group)


class ContextParallelGPT(GPT):
    """The course's GPT on this rank's tokens. All ranks of the group must call it with the same batch.

    Bytes sent by each rank: those of `ring_attention` in every block, and the gradients' all-reduce.

    Args:
        gpt: the unsplit model, built alike on every rank; it stays as it is.
        group: the ranks that share the sequence; None for all.

    Raises:
        ValueError: the GPT has dropout: the ring never holds the weights that would be dropped. Or its attention is
            recomputed already, so that the ring would not be asked.
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
        positions_s = own_tokens(torch.arange(tokens.shape[SEQ], device=tokens.device), 0, self.order, self.group)
        return self.embed_at(own_tokens(tokens, SEQ, self.order, self.group), positions_s)

    def loss(self, logits_BsV: Float[Tensor, "batch seq_part vocab"], targets: Tensor) -> Float[Tensor, ""]:
        """Mean cross-entropy over the tokens of all ranks, in nats; the same on every rank."""
        return loss_of_parts(logits_BsV, own_tokens(targets, SEQ, self.order, self.group), targets, self.group)
