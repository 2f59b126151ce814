"""The conjugate operators of tensor parallelism: one's forward pass is its partner's backward pass.

    | operator            | forward        | backward       | its partner         | named in                        |
    |---------------------|----------------|----------------|---------------------|---------------------------------|
    | `f`                 | nothing        | all-reduce     | `f_bar`             | Shoeybi et al. 2019, fig. 3     |
    | `f_bar`             | all-reduce     | nothing        | `f`                 | (there it is called g)          |
    | `g`                 | all-gather     | reduce-scatter | `g_bar`             | Korthikanti et al. 2022, fig. 5 |
    | `g_bar`             | reduce-scatter | all-gather     | `g`                 |                                 |
    | `scatter_to_group`  | own part       | all-gather     | `gather_from_group` | Megatron-LM's `mappings.py`     |
    | `gather_from_group` | all-gather     | own part       | `scatter_to_group`  |                                 |
    | `all_to_all_dims`   | all-to-all     | all-to-all     | itself              | Jacobs et al. 2023 (Ulysses)    |

Why pairs: where a tensor is whole on every rank and each rank uses it for a part of the work, each rank learns a part
of its gradient, so the parts are added up (`f`). Where each rank holds a term of a sum, the sum is formed once, and
every rank needs the gradient of the sum (`f_bar`). `g` and `g_bar` are the same two with the tensor cut along one dim.

All ranks of the group must call each operator, in the same order. With n the bytes of the whole tensor and t ranks, an
all-reduce sends 2(t-1)/t · n from each rank, the others (t-1)/t · n.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

Group = dist.ProcessGroup | None
"""The ranks that talk to each other; None for all."""
Operation = Callable[..., Tensor]

# PyTorch 2.13 renamed both, and warns of the old names.
all_gather_single: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def f(whole: Tensor, group: Group = None) -> Tensor:
    """The tensor as it is; each rank's gradient of it is a part of a sum, which the backward pass forms."""
    return pair(whole, forward=_same, backward=all_reduce, group=group)


def f_bar(summand: Tensor, group: Group = None) -> Tensor:
    """The sum of all ranks' tensors; the gradient goes back as it came."""
    return pair(summand, forward=all_reduce, backward=_same, group=group)


def g(part: Tensor, dim: int, group: Group = None) -> Tensor:
    """The ranks' parts, side by side along `dim`; each rank's gradient of the whole is a part of a sum."""
    return pair(part, forward=all_gather, backward=reduce_scatter, dim=dim, group=group)


def g_bar(summand: Tensor, dim: int, group: Group = None) -> Tensor:
    """This rank's part along `dim` of the sum of all ranks' tensors."""
    return pair(summand, forward=reduce_scatter, backward=all_gather, dim=dim, group=group)


def scatter_to_group(whole: Tensor, dim: int, group: Group = None) -> Tensor:
    """This rank's part along `dim` of a tensor that every rank holds."""
    return pair(whole, forward=own_part, backward=all_gather, dim=dim, group=group)


def gather_from_group(part: Tensor, dim: int, group: Group = None) -> Tensor:
    """The ranks' parts, side by side along `dim`, for use that is the same on every rank."""
    return pair(part, forward=all_gather, backward=own_part, dim=dim, group=group)


def all_to_all_dims(part: Tensor, cut: int, joined: int, group: Group = None) -> Tensor:
    """Exchange parts along `joined` for parts along `cut`: each rank gets its part of every rank's part."""
    there = partial(all_to_all, cut=cut, joined=joined, group=group)
    return pair(part, forward=there, backward=partial(all_to_all, cut=joined, joined=cut, group=group))


def pair(x: Tensor, forward: Operation, backward: Operation, **where: Any) -> Tensor:
    """`forward(x, **where)`, through which a gradient goes back by `backward`: one line of the table above."""
    return _Pair.apply(x, partial(forward, **where), partial(backward, **where))


class _Pair(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Operation, backward: Operation) -> Tensor:
        ctx.operation = backward  # nothing is saved: a sum's gradient needs no values
        return forward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.operation(grad), None, None


def _same(x: Tensor, group: Group) -> Tensor:
    return x.view_as(x)  # a view: autograd does not see a pass through a tensor that comes out as it went in


def all_reduce(tensor: Tensor, group: Group = None) -> Tensor:
    """The sum over the group, in new memory: a gradient that autograd hands out is not ours to overwrite."""
    summed = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(summed, group=group)
    return summed


def all_gather(part: Tensor, dim: int, group: Group = None) -> Tensor:
    """The ranks' parts, in rank order, side by side along `dim`."""
    return all_gather_async(part, dim, group)()


def all_gather_async(part: Tensor, dim: int, group: Group = None) -> Callable[[], Tensor]:
    """Begin an `all_gather`, and return the function that waits for its result."""
    parts = part.new_empty((dist.get_world_size(group) * part.shape[0], *part.shape[1:]))
    work = all_gather_single(parts, part.contiguous(), group=group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        # gathered end to end along dim 0, whatever `dim` is
        return parts if dim == 0 else torch.cat(parts.chunk(dist.get_world_size(group)), dim)

    return finish


def reduce_scatter(summand: Tensor, dim: int, group: Group = None) -> Tensor:
    """This rank's part along `dim` of the sum over the group."""
    return reduce_scatter_async(summand, dim, group)()


def reduce_scatter_async(summand: Tensor, dim: int, group: Group = None) -> Callable[[], Tensor]:
    """Begin a `reduce_scatter`, and return the function that waits for its result."""
    parts = summand.chunk(divided(summand, dim, group), dim)
    own = parts[0].new_empty(parts[0].shape)
    # end to end along dim 0, so that one copy makes each rank's part contiguous; `parts` alone would be many messages
    work = reduce_scatter_single(own, torch.cat(parts), group=group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        return own

    return finish


def all_to_all(part: Tensor, cut: int, joined: int, group: Group = None) -> Tensor:
    """Cut along dim `cut`, send piece r to rank r, and join the received pieces along dim `joined`."""
    pieces = torch.stack([piece.contiguous() for piece in part.chunk(divided(part, cut, group), cut)])
    received = torch.empty_like(pieces)
    dist.all_to_all_single(received, pieces, group=group)
    return torch.cat(tuple(received), joined)  # piece r came from rank r


def own_part(whole: Tensor, dim: int, group: Group = None, blocks: int = 1) -> Tensor:
    """A copy of this rank's part along `dim` (a view would keep the whole alive).

    With `blocks`, the part of each of so many equal blocks along `dim`: q, k and v are three blocks of one weight.

    Raises:
        ValueError: the dim, or a block of it, does not divide by the number of ranks.
    """
    ranks, rank = divided(whole, dim, group, blocks), dist.get_rank(group)
    return torch.cat([block.chunk(ranks, dim)[rank] for block in whole.chunk(blocks, dim)], dim).contiguous()


def divided(tensor: Tensor, dim: int, group: Group = None, blocks: int = 1) -> int:
    """The number of ranks of the group, which must divide the dim.

    Raises:
        ValueError: the ranks do not divide the dim.
    """
    ranks, size = dist.get_world_size(group), tensor.shape[dim]
    if size % (ranks * blocks):
        each = f"{blocks} blocks of " if blocks > 1 else ""
        raise ValueError(
            f"dim {dim} of {tuple(tensor.shape)} is {each}{size // blocks}, which does not split into {ranks} equal "
            "parts: choose a size that divides, or fewer ranks"
        )
    return ranks
