"""Tensor parallelism: one layer on several ranks, each with some of its columns, rows or heads.

Cut the first matrix of a pair by columns and the second by rows, and what lies between never has to be whole: one
all-reduce behind the pair in the forward pass, one in front of it in the backward pass (Shoeybi et al. 2019, §3). With
`sequence_parallel` the two become all-gather and reduce-scatter, the same bytes, and what lies between the pairs is cut
along the sequence (Korthikanti et al. 2022, §4.2.2).

Every part has a `from_`, which takes the unsplit module's weights, and keeps its parameters' names; all ranks of the
group call it with the same module. `parallel.tensor_gpt` puts the parts together. Shape suffixes are those of
`model.gpt`; a small letter is a rank's part: x_BsD has 1/t of the sequence, q_BhSK 1/t of the heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import Function

from course_lib.collectives.operators import Group, all_gather, all_reduce, f, f_bar, g_bar, own_part, reduce_scatter
from course_lib.model.gpt import MLP, Attention, rotate
from course_lib.train.accumulate import count_tokens

BATCH, SEQ, WIDTH = 0, 1, 2
"""Dims of the stream x_BSD."""


class Cut(NamedTuple):
    """How a parameter is cut over the ranks: along `dim`, in each of `blocks` equal blocks."""

    dim: int
    blocks: int = 1


class ColumnParallelLinear(nn.Module):
    """Each rank computes some of the output's features from all of the input's.

    Bytes sent by each rank: nothing forward, an all-reduce of the input's gradient backward. With `sequence_parallel`
    the input comes cut along the sequence: all-gather forward, all-gather (again) and reduce-scatter backward, since
    only the part is kept in between.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    group: Group
    sequence_parallel: bool
    cuts: dict[str, Cut]

    @classmethod
    def from_(cls, linear: nn.Linear, group: Group = None, sequence_parallel: bool = False, blocks: int = 1) -> Self:
        """Cut a layer's rows of `weight`, which are its output's features.

        Args:
            linear: the unsplit layer.
            group: the ranks that share it.
            sequence_parallel: whether the input is cut along the sequence.
            blocks: how many equal blocks lie side by side in the output; each is cut.

        Raises:
            ValueError: the features do not divide.
        """
        self = cls()
        self.group, self.sequence_parallel = group, sequence_parallel
        self.cuts = {"weight": Cut(0, blocks), "bias": Cut(0, blocks)}
        self.weight = _part(linear.weight, self.cuts["weight"], group)
        self.bias = None if linear.bias is None else _part(linear.bias, self.cuts["bias"], group)
        return self

    def forward(self, x: Float[Tensor, "batch seq_in width"]) -> Float[Tensor, "batch seq features"]:
        """This rank's features of every token."""
        if self.sequence_parallel:
            return _GatheredLinear.apply(x, self.weight, self.bias, self.group)
        return F.linear(f(x, self.group), self.weight, self.bias)


class _GatheredLinear(Function):
    """`linear(g(x))` that keeps its part of x alone, and gathers again when the weight's gradient needs all of it
    (Korthikanti et al. 2022, §4.2.2)."""

    @staticmethod
    def forward(ctx: Any, x_BsD: Tensor, weight: Tensor, bias: Tensor | None, group: Group) -> Tensor:
        ctx.save_for_backward(x_BsD, weight)
        ctx.group, ctx.has_bias = group, bias is not None
        return F.linear(all_gather(x_BsD, SEQ, group), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x_BsD, weight = ctx.saved_tensors
        x_grad = reduce_scatter(grad @ weight, SEQ, ctx.group)
        x_BSD = all_gather(x_BsD, SEQ, ctx.group)
        weight_grad = grad.flatten(BATCH, SEQ).T @ x_BSD.flatten(BATCH, SEQ)
        return x_grad, weight_grad, grad.sum((BATCH, SEQ)) if ctx.has_bias else None, None


class RowParallelLinear(nn.Module):
    """Each rank has some of the input's features and computes its part of the sum that every output is.

    Bytes sent by each rank: an all-reduce of the output forward, nothing backward. With `sequence_parallel` the output
    leaves cut along the sequence: reduce-scatter forward, all-gather backward. The bias is whole on every rank and is
    added once, behind the sum.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    group: Group
    sequence_parallel: bool
    cuts: dict[str, Cut]

    @classmethod
    def from_(cls, linear: nn.Linear, group: Group = None, sequence_parallel: bool = False) -> Self:
        """Cut a layer's columns of `weight`, which are its input's features.

        Args:
            linear: the unsplit layer.
            group: the ranks that share it.
            sequence_parallel: whether the output leaves cut along the sequence.

        Raises:
            ValueError: the features do not divide.
        """
        self = cls()
        self.group, self.sequence_parallel = group, sequence_parallel
        self.cuts = {"weight": Cut(1)}
        self.weight = _part(linear.weight, self.cuts["weight"], group)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())
        if sequence_parallel:
            add_up_gradients(self.bias, group)
        return self

    def forward(self, x: Float[Tensor, "batch seq features"]) -> Float[Tensor, "batch seq_out width"]:
        """The whole sum; or this rank's tokens of it."""
        partial = F.linear(x, self.weight)
        summed = g_bar(partial, SEQ, self.group) if self.sequence_parallel else f_bar(partial, self.group)
        return summed if self.bias is None else summed + self.bias


class ParallelMLP(nn.Module):
    """Columns, GELU, rows: each rank has some of the hidden features from beginning to end."""

    up: ColumnParallelLinear
    down: RowParallelLinear
    dropout: SplitDropout

    @classmethod
    def from_(cls, mlp: MLP, group: Group = None, sequence_parallel: bool = False) -> Self:
        """Cut the hidden layer.

        Raises:
            ValueError: its width does not divide.
        """
        self = cls()
        self.up = ColumnParallelLinear.from_(mlp.up, group, sequence_parallel)
        self.down = RowParallelLinear.from_(mlp.down, group, sequence_parallel)
        self.dropout = SplitDropout(mlp.dropout.p, SEQ if sequence_parallel else None, group)
        return self

    def forward(self, x: Float[Tensor, "batch seq width"]) -> Float[Tensor, "batch seq width"]:
        """Wider, bent, and back. GELU bends each feature for itself, so nobody needs the others'."""
        return self.dropout(self.down(F.gelu(self.up(x), approximate="tanh")))


class ParallelAttention(nn.Module):
    """Columns, heads, rows: each rank has some of the heads from beginning to end."""

    qkv: ColumnParallelLinear
    out: RowParallelLinear
    out_dropout: SplitDropout
    heads: Attention

    @classmethod
    def from_(cls, attention: Attention, group: Group = None, sequence_parallel: bool = False) -> Self:
        """Cut by heads.

        Raises:
            ValueError: the heads do not divide, or fused attention has dropout (its kernel draws for itself).
        """
        config, ranks = attention.config, dist.get_world_size(group)
        if config.heads % ranks:
            raise ValueError(f"{config.heads} heads do not split over {ranks} ranks: a head stays in one piece")
        if config.attention == "fused" and config.dropout:
            raise ValueError("fused attention draws its dropout inside: take attention='explicit', or dropout=0")
        self = cls()
        self.qkv = ColumnParallelLinear.from_(attention.qkv, group, sequence_parallel, blocks=3)
        self.out = RowParallelLinear.from_(attention.out, group, sequence_parallel)
        self.out_dropout = SplitDropout(config.dropout, SEQ if sequence_parallel else None, group)
        with torch.device("meta"):
            self.heads = Attention(config)  # for what one head does; it has no weights
        self.heads.qkv = self.heads.out = nn.Identity()  # type: ignore[assignment]
        self.heads.weights_dropout = SplitDropout(config.dropout, 1, group)  # type: ignore[assignment]
        return self

    def forward(self, x: Float[Tensor, "batch seq width"]) -> Float[Tensor, "batch seq width"]:
        """What each token gathers from the tokens before it: in this rank's heads, then summed over all."""
        config = self.heads.config
        q_BhSK, k_BhSK, v_BhSK = (
            part.unflatten(-1, (-1, config.head_width)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        if config.positions == "rotary":
            q_BhSK, k_BhSK = rotate(q_BhSK), rotate(k_BhSK)
        attend = self.heads.explicit if config.attention == "explicit" else self.heads.fused
        mixed_BSd = attend(q_BhSK, k_BhSK, v_BhSK).transpose(1, 2).flatten(2)
        return self.out_dropout(self.out(mixed_BSd))


class SplitDropout(nn.Module):
    """Dropout of a part: draws the mask of the whole tensor, as the unsplit layer would, and uses its own part of it.

    So a split model drops what the unsplit one drops, as long as the ranks' random states are the same when a step
    begins: seed them by (seed, step). Masks drawn for the part alone would be the same on every rank: then head 0 and
    head 4 always lose the same weights.

    Args:
        p: probability of zeroing.
        dim: the dim along which the input is cut; None if every rank has all of it.
        group: the ranks that share the tensor.
    """

    def __init__(self, p: float, dim: int | None, group: Group = None) -> None:
        super().__init__()
        self.p, self.dim, self.group = p, dim, group

    def forward(self, x: Float[Tensor, "*dims"]) -> Float[Tensor, "*dims"]:
        """Zeros with probability p, the rest divided by 1 - p."""
        if self.dim is None or not self.training or not self.p:
            return F.dropout(x, self.p, self.training)
        shape = list(x.shape)
        shape[self.dim] *= dist.get_world_size(self.group)
        keep = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(1 - self.p)
        return x * own_part(keep, self.dim, self.group).div_(1 - self.p)


def add_up_gradients(whole: nn.Parameter | nn.Module | None, group: Group) -> None:
    """Sum the gradients of what every rank holds whole and uses for its own tokens: `f`, for parameters.

    Bytes sent by each rank: one small all-reduce for each parameter, in the backward pass.
    """
    parameters = [whole] if isinstance(whole, nn.Parameter) else [] if whole is None else list(whole.parameters())
    for parameter in parameters:
        parameter.register_hook(lambda grad: all_reduce(grad, group))


def loss_of_parts(
    logits_BsV: Float[Tensor, "batch part vocab"],
    own_Bs: Int[Tensor, "batch part"],
    targets_BS: Int[Tensor, "batch seq"],
    group: Group,
) -> Float[Tensor, ""]:
    """The mean cross-entropy over all targets, from each rank's logits of its own tokens; the same on every rank.

    Not the mean of the ranks' means: where targets are padding (`IGNORE`), ranks have different numbers of them.

    Bytes sent by each rank: an all-reduce of one number, forward.
    """
    wide = torch.promote_types(logits_BsV.dtype, torch.float32)
    own_sum = F.cross_entropy(logits_BsV.to(wide).flatten(0, 1), own_Bs.flatten(), reduction="sum")
    return f_bar(own_sum / count_tokens(targets_BS), group)


def _part(whole: Tensor, cut: Cut, group: Group) -> nn.Parameter:
    return nn.Parameter(own_part(whole.detach(), cut.dim, group, cut.blocks))
