"""Tensor parallelism: one layer on several ranks, each with some of its columns, rows or heads.

Cut the first matrix of a pair by columns and the second by rows, and the tensor between is never whole: one
all-reduce behind the pair in the forward pass, one in front of it in the backward pass (Shoeybi et al. 2019, §3). With
`sequence_parallel` the two become all-gather and reduce-scatter, the same bytes, and the stream between pairs is cut
along the sequence (Korthikanti et al. 2022, §4.2.2).

A rank's part of a layer takes the whole layer's weights and keeps its parameters' names; all ranks cut the same layer.
Shape suffixes are those of `model.gpt`; a small letter is a rank's part: x_BsD has 1/t of the sequence, y_BSf 1/t of a
layer's output features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import Function

from course_lib.collectives.operators import (
    Group,
    all_gather,
    all_gather_async,
    all_reduce,
    f,
    f_bar,
    g_bar,
    own_part,
    reduce_scatter_async,
)
from course_lib.model.gpt import Block
from course_lib.train.accumulate import count_tokens

BATCH, SEQ, WIDTH = 0, 1, 2  # dims of the stream x_BSD
HEADS = 1  # dim of attention's weights_BHSS


class Sharding(NamedTuple):
    """The way in which a parameter is cut over the ranks: along `dim`, in each of `blocks` equal blocks."""

    dim: int
    blocks: int = 1


class ColumnParallelLinear(nn.Module):
    """Each rank computes some of the output's features from all of the input's.

    Bytes sent by each rank: nothing forward, an all-reduce of the input's gradient backward. With `sequence_parallel`
    the input comes cut along the sequence: all-gather forward, all-gather (again) and reduce-scatter backward, since
    only the part is kept in between.

    Args:
        linear: the unsplit layer. Its `weight` is cut by rows, which are the output's features.
        group: the ranks that share the layer.
        sequence_parallel: whether the input is cut along the sequence.
        blocks: the number of equal blocks, side by side in the output, of which each is cut.

    Raises:
        ValueError: the features do not divide.
    """

    def __init__(
        self, linear: nn.Linear, group: Group = None, sequence_parallel: bool = False, blocks: int = 1
    ) -> None:
        super().__init__()
        self.group, self.sequence_parallel = group, sequence_parallel
        self.shardings = {"weight": Sharding(0, blocks), "bias": Sharding(0, blocks)}
        self.weight = _part(linear.weight, self.shardings["weight"], group)
        self.bias = None if linear.bias is None else _part(linear.bias, self.shardings["bias"], group)

    def forward(self, x: Float[Tensor, "batch seq_in width"]) -> Float[Tensor, "batch seq features"]:
        """This rank's features of every token."""
        if self.sequence_parallel:
            return _GatheredLinear.apply(x, self.weight, self.bias, self.group)  # (B, s, D) -> (B, S, f)
        return F.linear(f(x, self.group), self.weight, self.bias)  # (B, S, D) -> (B, S, f)


class _GatheredLinear(Function):
    """`linear(g(x))` that keeps only its part of x, and gathers again for the weight's gradient (Korthikanti et al.
    2022, §4.2.2). In the backward pass the messages travel while the products are computed."""

    @staticmethod
    def forward(ctx: Any, x_BsD: Tensor, weight_fD: Tensor, bias_f: Tensor | None, group: Group) -> Tensor:
        ctx.save_for_backward(x_BsD, weight_fD)
        ctx.group, ctx.has_bias = group, bias_f is not None
        return F.linear(all_gather(x_BsD, SEQ, group), weight_fD, bias_f)

    @staticmethod
    def backward(ctx: Any, y_grad_BSf: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x_BsD, weight_fD = ctx.saved_tensors
        gathering = all_gather_async(x_BsD, SEQ, ctx.group)  # travels during the first product
        reducing = reduce_scatter_async(y_grad_BSf @ weight_fD.to(y_grad_BSf.dtype), SEQ, ctx.group)  # … the second
        x_BSD = gathering().to(y_grad_BSf.dtype)  # autocast saves a wider x than the gradient
        weight_grad_fD = y_grad_BSf.flatten(BATCH, SEQ).T @ x_BSD.flatten(BATCH, SEQ)  # (f, B·S) @ (B·S, D) -> (f, D)
        bias_grad_f = y_grad_BSf.sum((BATCH, SEQ)) if ctx.has_bias else None
        return reducing(), weight_grad_fD, bias_grad_f, None


class RowParallelLinear(nn.Module):
    """Each rank has some of the input's features, and computes one term of the sum that is the output.

    Bytes sent by each rank: an all-reduce of the output forward, nothing backward. With `sequence_parallel` the output
    leaves cut along the sequence: reduce-scatter forward, all-gather backward. The bias is whole on every rank and is
    added once, behind the sum.

    Args:
        linear: the unsplit layer. Its `weight` is cut by columns, which are the input's features.
        group: the ranks that share the layer.
        sequence_parallel: whether the output leaves cut along the sequence. Each rank then has the bias's gradient of
            its own tokens (`add_up_gradients`).

    Raises:
        ValueError: the features do not divide.
    """

    def __init__(self, linear: nn.Linear, group: Group = None, sequence_parallel: bool = False) -> None:
        super().__init__()
        self.group, self.sequence_parallel = group, sequence_parallel
        self.shardings = {"weight": Sharding(1)}
        self.weight = _part(linear.weight, self.shardings["weight"], group)
        self.bias = None if (bias := linear.bias) is None else nn.Parameter(bias.detach().clone(), bias.requires_grad)

    def forward(self, x_BSf: Float[Tensor, "batch seq features"]) -> Float[Tensor, "batch seq_out width"]:
        """The whole sum, or its rows of this rank's tokens."""
        summand_BSD = F.linear(x_BSf, self.weight)  # (B, S, f) -> (B, S, D); no bias: t ranks would add it t times
        y = g_bar(summand_BSD, SEQ, self.group) if self.sequence_parallel else f_bar(summand_BSD, self.group)
        return y if self.bias is None else y + self.bias


def cut_block(block: Block, group: Group = None, sequence_parallel: bool = False) -> None:
    """Replace a block's layers by this rank's parts of them, in place: some of the heads, some of the hidden features.

    The norms stay whole, and the block's forward pass stays the same: no head, and no hidden feature's GELU, needs
    another. The stream between is whole, or with `sequence_parallel` cut along the sequence.

    Bytes sent by each rank, with n the stream's bytes: 4 all-reduces of n, two in each pass; with `sequence_parallel`
    2 all-gathers and 2 reduce-scatters of n in the forward pass, which is as much, and in the backward pass 2
    all-gathers more, since only parts are kept.

    Raises:
        ValueError: heads or features do not divide, or fused attention has dropout (its kernel draws for itself).
    """
    attention, mlp, config, ranks = block.attention, block.mlp, block.attention.config, dist.get_world_size(group)
    if config.heads % ranks:
        raise ValueError(f"{config.heads} heads do not split over {ranks} ranks: a head stays in one piece")
    if config.attention == "fused" and config.dropout:
        raise ValueError("fused attention draws its dropout inside: take attention='explicit', or dropout=0")
    # q, k and v lie side by side in one weight: each is cut by heads
    attention.qkv = ColumnParallelLinear(attention.qkv, group, sequence_parallel, blocks=3)  # type: ignore[assignment]
    attention.out = RowParallelLinear(attention.out, group, sequence_parallel)  # type: ignore[assignment]
    mlp.up = ColumnParallelLinear(mlp.up, group, sequence_parallel)  # type: ignore[assignment]
    mlp.down = RowParallelLinear(mlp.down, group, sequence_parallel)  # type: ignore[assignment]
    attention.weights_dropout = SplitDropout(config.dropout, HEADS, group)  # type: ignore[assignment]
    along = SEQ if sequence_parallel else None
    attention.out_dropout = SplitDropout(config.dropout, along, group)  # type: ignore[assignment]
    mlp.dropout = SplitDropout(config.dropout, along, group)  # type: ignore[assignment]
    if sequence_parallel:
        add_up_gradients(block, group)


class SplitDropout(nn.Module):
    """Dropout of a part, cut along `dim`: draws the mask of the whole tensor, as the unsplit layer does, and uses its
    own part of it. With None for `dim`, every rank has all of the tensor.

    So a split model drops the unsplit model's elements, as long as the ranks' random states are the same when a step
    begins: seed them by (seed, step). Masks drawn for the part alone would be the same on every rank: then head 0 and
    head 4 always lose the same weights.
    """

    def __init__(self, p: float, dim: int | None, group: Group = None) -> None:
        super().__init__()
        self.p, self.dim, self.group = p, dim, group

    def forward(self, x: Float[Tensor, "*dims"]) -> Float[Tensor, "*dims"]:
        """Zeros with probability p, the rest divided by 1 - p."""
        if self.dim is None or not self.training or not self.p:
            return F.dropout(x, self.p, self.training)
        shape = list(x.shape)
        shape[self.dim] *= dist.get_world_size(self.group)  # of the whole tensor, whose mask all ranks draw alike
        keep = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(1 - self.p)
        return x * own_part(keep, self.dim, self.group).div_(1 - self.p)


def add_up_gradients(module: nn.Module, group: Group) -> None:
    """Sum the gradients of a module's parameters that every rank holds whole and uses for its own tokens.

    `f`, for parameters: while the module's forward pass runs, copies stand in for them. The gradients leave the
    backward pass in one message, since each message waits for the slowest rank, whatever its size. (A part of the
    module that runs again in the backward pass finds no copies: its gradients are summed one by one.) In a pass all
    ranks must use the same of these parameters. Bytes sent by each rank: one all-reduce of their bytes, in each
    backward pass.
    """
    newest = [-1]  # of autograd's passes in which copies had gradients

    def add_up(grad: Tensor | None) -> Tensor | None:  # None leaves a gradient as it is: a sum, of this very pass
        return all_reduce(grad, group) if grad is not None and newest[0] != torch._C._current_graph_task_id() else None

    def stand_in(module: nn.Module, _args: Any) -> None:
        places = _uncut(module)
        copies = _CopyAll.apply(group, newest, *(getattr(layer, name) for layer, name, _ in places))
        for (layer, name, parameter), copy in zip(places, copies):
            if add_up not in (parameter._backward_hooks or {}).values():  # a deep copy of a parameter has no hooks
                parameter.register_hook(add_up)
            layer.__dict__[name] = copy  # is found before the parameter of the same name

    def step_aside(module: nn.Module, _args: Any, _output: Any) -> None:
        for layer, name, _ in _uncut(module):
            layer.__dict__.pop(name, None)  # from now on the name is the parameter's again

    module.register_forward_pre_hook(stand_in)
    module.register_forward_hook(step_aside, always_call=True)


def _uncut(module: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """The trainable parameters in a module that are whole on every rank, each behind its layer and its name."""
    return [
        (layer, name, parameter)
        for layer in module.modules()
        for name, parameter in layer.named_parameters(recurse=False)
        if parameter.requires_grad and name not in getattr(layer, "shardings", {})
    ]


class _CopyAll(Function):
    """`f`, of several tensors at once."""

    @staticmethod
    def forward(ctx: Any, group: Group, newest: list[int], *whole: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.newest = group, newest
        ctx.set_materialize_grads(False)  # a recomputed part's copies get no gradient, and need not be sent
        return tuple(tensor.view_as(tensor) for tensor in whole)  # views, so that autograd sees a step here

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.newest[0] = torch._C._current_graph_task_id()
        came = [grad for grad in grads if grad is not None]  # one message for all
        summed = all_reduce(torch.cat([grad.flatten() for grad in came]), ctx.group) if came else torch.empty(0)
        parts = iter(summed.split([grad.numel() for grad in came]))
        return None, None, *(None if grad is None else next(parts).view(grad.shape) for grad in grads)


def loss_of_parts(
    logits_BsV: Float[Tensor, "batch part vocab"], own_Bs: Int[Tensor, "batch part"],
    targets_BS: Int[Tensor, "batch seq"], group: Group,
) -> Float[Tensor, ""]:  # fmt: skip
    """The mean cross-entropy over all targets, from each rank's logits of its own tokens; the same on every rank.

    Bytes sent by each rank: an all-reduce of one number, forward.
    """
    wide = torch.promote_types(logits_BsV.dtype, torch.float32)
    own_sum = F.cross_entropy(logits_BsV.to(wide).flatten(0, 1), own_Bs.flatten(), reduction="sum")
    # not a mean of means: where targets are padding (`IGNORE`), ranks have different numbers of them
    return f_bar(own_sum / count_tokens(targets_BS), group)


def _part(whole: Tensor, cut: Sharding, group: Group) -> nn.Parameter:
    return nn.Parameter(own_part(whole.detach(), cut.dim, group, cut.blocks), whole.requires_grad)
