"""The conjugate operators of tensor parallelism: what one does in the forward pass, its partner does in the backward.

| operator | forward        | backward       | its partner | named in                       |
|----------|----------------|----------------|-------------|--------------------------------|
| `f`      | nothing        | all-reduce     | `f_bar`     | Shoeybi et al. 2019, fig. 3    |
| `f_bar`  | all-reduce     | nothing        | `f`         | (there it is called g)         |
| `g`      | all-gather     | reduce-scatter | `g_bar`     | Korthikanti et al. 2022, fig. 5|
| `g_bar`  | reduce-scatter | all-gather     | `g`         |                                |
| `split`  | own part       | all-gather     | `join`      | Megatron-LM's scatter          |
| `join`   | all-gather     | own part       | `split`     | Megatron-LM's gather           |
| `turn`   | all-to-all     | all-to-all     | itself      |                                |

Why pairs: where a tensor is whole on every rank and each rank uses it for a part of the work, each rank learns a part
of its gradient, so the parts are added up (`f`). Where each rank holds a part of a sum, the sum is formed once, and its
gradient is what everyone needs (`f_bar`). `g` and `g_bar` are the same two with the tensor cut along one dim.

All ranks of the group must call each operator, in the same order. With n the bytes of the whole tensor and t ranks, an
all-reduce sends 2(t-1)/t · n from each rank, the others (t-1)/t · n.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

Group = dist.ProcessGroup | None
"""The ranks that share a layer; None for all."""


def f(whole: Tensor, group: Group = None) -> Tensor:
    """The tensor as it is; each rank's gradient of it is a part of a sum, which the backward pass forms."""
    return _CopyForward.apply(whole, group)


def f_bar(partial: Tensor, group: Group = None) -> Tensor:
    """The sum of all ranks' tensors; the gradient goes back as it came."""
    return _SumForward.apply(partial, group)


def g(part: Tensor, dim: int, group: Group = None) -> Tensor:
    """The ranks' parts, side by side along `dim`; each rank's gradient of the whole is a part of a sum."""
    return _GatherForward.apply(part, dim, group)


def g_bar(partial: Tensor, dim: int, group: Group = None) -> Tensor:
    """This rank's part along `dim` of the sum of all ranks' tensors."""
    return _ReduceScatterForward.apply(partial, dim, group)


def split(whole: Tensor, dim: int, group: Group = None) -> Tensor:
    """This rank's part along `dim` of a tensor that every rank holds."""
    return _SplitForward.apply(whole, dim, group)


def join(part: Tensor, dim: int, group: Group = None) -> Tensor:
    """The ranks' parts, side by side along `dim`, for use that is the same on every rank."""
    return _JoinForward.apply(part, dim, group)


def turn(part: Tensor, cut: int, joined: int, group: Group = None) -> Tensor:
    """From parts along `joined` to parts along `cut`: each rank keeps its part of everyone's part."""
    return _TurnForward.apply(part, cut, joined, group)


class _CopyForward(Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return all_reduce(grad, ctx.group), None


class _SumForward(Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: Group) -> Tensor:
        return all_reduce(partial, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad, None


class _GatherForward(Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return all_gather(part, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return reduce_scatter(grad, ctx.dim, ctx.group), None, None


class _ReduceScatterForward(Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return reduce_scatter(partial, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return all_gather(grad, ctx.dim, ctx.group), None, None


class _SplitForward(Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return own_part(whole, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return all_gather(grad, ctx.dim, ctx.group), None, None


class _JoinForward(Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return all_gather(part, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return own_part(grad, ctx.dim, ctx.group), None, None


class _TurnForward(Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, cut: int, joined: int, group: Group) -> Tensor:
        ctx.cut, ctx.joined, ctx.group = cut, joined, group
        return all_to_all(part, cut, joined, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return all_to_all(grad, ctx.joined, ctx.cut, ctx.group), None, None, None


def all_reduce(tensor: Tensor, group: Group = None) -> Tensor:
    """The sum over the group, in new memory: a gradient that autograd hands out is not ours to overwrite."""
    summed = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(summed, group=group)
    return summed


def all_gather(part: Tensor, dim: int, group: Group = None) -> Tensor:
    """The ranks' parts, in rank order, side by side along `dim`."""
    part = part.contiguous()
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part, group=group)
    return torch.cat(parts, dim)


def reduce_scatter(partial: Tensor, dim: int, group: Group = None) -> Tensor:
    """This rank's part along `dim` of the sum over the group."""
    parts = [part.contiguous() for part in partial.chunk(divided(partial, dim, group), dim)]
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, group=group)
    return mine


def all_to_all(part: Tensor, cut: int, joined: int, group: Group = None) -> Tensor:
    """Cut along one dim, send piece r to rank r, and put what comes side by side along another."""
    pieces = torch.stack([piece.contiguous() for piece in part.chunk(divided(part, cut, group), cut)])
    received = torch.empty_like(pieces)
    dist.all_to_all_single(received, pieces, group=group)
    return torch.cat(tuple(received), joined)


def own_part(whole: Tensor, dim: int, group: Group = None, blocks: int = 1) -> Tensor:
    """A copy of this rank's part along `dim` (a view would keep the whole alive).

    Args:
        whole: what every rank could hold.
        dim: which of its dims is cut.
        group: the ranks that share it.
        blocks: cut each of so many equal blocks along `dim`; queries, keys and values are three blocks of one weight.

    Raises:
        ValueError: the dim, or a block of it, does not divide by the number of ranks.
    """
    ranks, rank = divided(whole, dim, group, blocks), dist.get_rank(group)
    return torch.cat([block.chunk(ranks, dim)[rank] for block in whole.chunk(blocks, dim)], dim).contiguous()


def divided(tensor: Tensor, dim: int, group: Group = None, blocks: int = 1) -> int:
    """The number of ranks of the group, which must divide the dim.

    Raises:
        ValueError: it does not.
    """
    ranks, size = dist.get_world_size(group), tensor.shape[dim]
    if size % (ranks * blocks):
        each = f"{blocks} blocks of " if blocks > 1 else ""
        raise ValueError(
            f"dim {dim} of {tuple(tensor.shape)} is {each}{size // blocks}, which does not split into {ranks} equal "
            "parts: choose a size that divides, or fewer ranks"
        )
    return ranks
