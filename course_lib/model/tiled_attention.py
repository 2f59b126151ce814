"""Attention tile by tile: exact, and without the S × S scores in memory, forward or backward.

A softmax needs the largest score and the sum of all of a row before it gives one weight, or so it seems. But a row can
be read piece by piece, if the sum so far is scaled again whenever a larger score turns up (Milakov and
Gimelshein 2018):

    a row of scores      1  3 │ 2  5 │ 4  0          top       the largest so far           3 → 5 → 5
                         tile 0  tile 1  tile 2      total     sum of e^(score - top)       1.14 → 1.20 → 1.57
                                                     mixed     sum of e^(score - top) · value

    with a new tile      shrink = e^(old top - new top);  total = total · shrink + …;  mixed = mixed · shrink + …
    at the end           output = mixed / total;  log-sum-exp L = top + log(total)

The backward pass does not keep the weights either: e^(score - L) gives any tile of them again (Dao et al. 2022). The
loops here are those of FlashAttention-2 (Dao 2023): outside over tiles of queries in the forward pass, outside over
tiles of keys in the backward pass.

Shape suffixes: N queries, M keys, K features of a head; n and m are those of one tile. `...` are batch and heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS, COLUMNS = 128, 128
"""Queries and keys of a tile, unless others are asked for. On a CPU a tile of a few heads then stays in the cache."""


def tiled_attention(
    q: Float[Tensor, "... queries head"], k: Float[Tensor, "... keys head"], v: Float[Tensor, "... keys head"],
    causal: bool = False, rows: int = ROWS, columns: int = COLUMNS,
) -> Float[Tensor, "... queries head"]:  # fmt: skip
    """softmax(q kᵀ / √K) v, with a gradient, in O((N + M) · K) bytes a head beside one tile of rows × columns scores.

    With `causal` the queries are the last ones: query i sees the keys up to i + M - N. A query that sees no key gets 0,
    and so does its gradient. Sums are at least fp32. The backward pass needs the output and one number a query besides
    its arguments. There is no second derivative, and `autocast` changes nothing inside (a `CastPolicy` does).

    Args:
        q, k, v: dims before the last two are batch and heads, alike in all. A cache's k and v may have fewer bits.
        causal: whether a query sees no key behind it. Tiles that lie behind are skipped, not masked.
        rows, columns: queries and keys of a tile; sizes need not be multiples.

    Raises:
        ValueError: shapes do not fit, a dtype is not floating-point, or a tile is empty.

    Source: Dao 2023 (FlashAttention-2), algorithms 1 and 2.
    """
    if q.dim() < 2 or not all(each.is_floating_point() for each in (q, k, v)):
        raise ValueError(f"q, k, v of {q.dtype}, {k.dtype}, {v.dtype}: floating-point numbers, of two dims or more")
    if not (q.shape[:-2] == k.shape[:-2] and q.shape[-1] == k.shape[-1] and k.shape == v.shape):
        given = ", ".join(str(tuple(each.shape)) for each in (q, k, v))
        raise ValueError(f"q, k, v of shapes {given}: all but the number of queries must be the same")
    if rows < 1 or columns < 1:
        raise ValueError(f"rows={rows}, columns={columns}: a tile has at least one of each")
    return TiledAttention.apply(q, k, v, causal, rows, columns)  # type: ignore[no-any-return]


class TiledAttention(torch.autograd.Function):
    """The pair of passes. Saves q, k, v, the output and L, the log-sum-exp of each query's scores (...,N)."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, rows: int = ROWS, columns: int = COLUMNS
    ) -> Tensor:
        """Output of every query, tile by tile."""
        wide = torch.promote_types(q.dtype, torch.float32)
        output, logsum_N = torch.empty_like(q[..., :1].expand_as(q)), q.new_empty(q.shape[:-1], dtype=wide)
        with without_autocast(q.device):
            for here in pieces(q.shape[-2], rows):
                output[..., here, :], logsum_N[..., here] = attend_rows(q, k, v, here, causal, columns)
        ctx.save_for_backward(q, k, v, output, logsum_N)
        ctx.tiles = causal, rows, columns
        return output

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of q, k, v."""
        with without_autocast(gradients[0].device):
            return *attention_backward(*ctx.saved_tensors, gradients[0], *ctx.tiles), None, None, None  # pyright: ignore


def attend_rows(
    q: Tensor, k: Tensor, v: Tensor, here: slice, causal: bool, columns: int
) -> tuple[Float[Tensor, "... n head"], Float[Tensor, "... n"]]:
    """Output and log-sum-exp of the queries `here`: one pass over their keys, a tile of scores at a time."""
    wide = torch.promote_types(q.dtype, torch.float32)
    q_nK = q[..., here, :].to(wide) * q.shape[-1] ** -0.5
    top_n, total_n = q_nK.new_full(q_nK.shape[:-1], -torch.inf), q_nK.new_zeros(q_nK.shape[:-1])
    mixed_nK = torch.zeros_like(q_nK)
    for there in pieces(k.shape[-2], columns):
        if causal and there.start >= here.stop + k.shape[-2] - q.shape[-2]:
            break  # the tile's first key is behind the last query here, and so are all further ones
        scores_nm = scores_of(q_nK, k, here, there, q.shape[-2], causal)
        higher_n = torch.maximum(top_n, scores_nm.amax(-1))
        level_n = higher_n.masked_fill(higher_n == -torch.inf, 0)  # -inf - -inf would be nan
        weights_nm = scores_nm.sub_(level_n[..., None]).exp_()
        shrink_n = (top_n - level_n).exp()  # what was added so far had a lower top; of nothing, e^-inf = 0
        total_n = total_n * shrink_n + weights_nm.sum(-1)
        mixed_nK = mixed_nK.mul_(shrink_n[..., None]).add_(weights_nm @ v[..., there, :].to(wide))
        top_n = higher_n
    return mixed_nK.div_(total_n.masked_fill(total_n == 0, 1)[..., None]).to(q.dtype), top_n + total_n.log()


def attention_backward(
    q: Tensor, k: Tensor, v: Tensor, output: Tensor, logsum_N: Tensor, gradient: Tensor,
    causal: bool = False, rows: int = ROWS, columns: int = COLUMNS,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v from the output's: every tile of weights is computed again, and dropped again.

    With weights P = e^(scores - L), dP = dO vᵀ, and D = the sum over features of dO · O, softmax's gradient is
    dS = P · (dP - D): D is all that a row has to know of its other tiles.
    """
    wide, scale = logsum_N.dtype, q.shape[-1] ** -0.5
    unseen_to_0 = logsum_N.masked_fill(logsum_N == -torch.inf, 0)  # a query without keys: e^(-inf - 0) = 0
    d_N = (gradient.to(wide) * output).sum(-1)
    dq, dk, dv = torch.zeros_like(q, dtype=wide), torch.empty_like(k), torch.empty_like(v)
    for there in pieces(k.shape[-2], columns):
        k_mK, v_mK = k[..., there, :].to(wide), v[..., there, :].to(wide)
        dk_mK, dv_mK = torch.zeros_like(k_mK), torch.zeros_like(v_mK)
        for here in pieces(q.shape[-2], rows):
            if causal and there.start >= here.stop + k.shape[-2] - q.shape[-2]:
                continue  # the tile's first key is behind its last query
            q_nK, gradient_nK = q[..., here, :].to(wide) * scale, gradient[..., here, :].to(wide)
            weights_nm = scores_of(q_nK, k, here, there, q.shape[-2], causal)
            weights_nm.sub_(unseen_to_0[..., here, None]).exp_()
            dv_mK += weights_nm.mT @ gradient_nK
            d_scores_nm = (gradient_nK @ v_mK.mT).sub_(d_N[..., here, None]).mul_(weights_nm)
            dk_mK += d_scores_nm.mT @ q_nK  # q_nK holds the scale
            dq[..., here, :] += (d_scores_nm @ k_mK).mul_(scale)
        dk[..., there, :], dv[..., there, :] = dk_mK, dv_mK
    return dq.to(q.dtype), dk, dv


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which `torch.autocast` narrows nothing on this device, whether or not the device knows it."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def pieces(size: int, step: int) -> Iterator[slice]:
    """0 to `size` in slices of `step`; the last one may be shorter."""
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def scores_of(q_nK: Tensor, k: Tensor, here: slice, there: slice, queries: int, causal: bool) -> Float[Tensor, "..."]:
    """A tile of scores q kᵀ, -inf where a key is behind its query. `q_nK` is scaled already."""
    scores_nm = q_nK @ k[..., there, :].to(q_nK.dtype).mT
    last_seen = here.start + k.shape[-2] - queries  # by the tile's first query
    if causal and there.stop - 1 > last_seen:  # else every query of the tile sees every key
        hidden = torch.ones(scores_nm.shape[-2:], dtype=torch.bool, device=k.device).triu_(last_seen - there.start + 1)
        scores_nm.masked_fill_(hidden, -torch.inf)
    return scores_nm
