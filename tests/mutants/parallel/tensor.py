"""Known-wrong tensor parallelism. Each makes a ParallelGPT with one fault, and says what it must be told."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from course_lib.collectives import operators
from course_lib.parallel import tensor
from course_lib.parallel.tensor_gpt import ParallelGPT


def blocks(model: Any) -> list[Any]:
    """Its blocks, of which pyright knows only that they are modules."""
    return list(model.blocks)


def replicates(gpt, group, sequence_parallel):
    """Every rank computes all of it: right everywhere, and nothing is gained."""
    whole = copy.deepcopy(gpt)
    whole.group = group
    return whole


def no_sum_in_the_backward_pass(gpt, group, sequence_parallel):
    """f forgotten: forward right, gradients of everything below are a rank's own part."""
    split = ParallelGPT(gpt, group)
    for block in blocks(split):
        for linear in (block.attention.qkv, block.mlp.up):
            linear.forward = lambda x, linear=linear: F.linear(x, linear.weight, linear.bias)
    return split


def all_reduce_in_both_passes(gpt, group, sequence_parallel):
    """f_bar sums the gradient, too: each rank's is whole already, so it gets t times too large."""
    split = ParallelGPT(gpt, group)
    for block in blocks(split):
        down = block.mlp.down
        down.forward = lambda x, down=down: (
            operators.f(operators.f_bar(F.linear(x, down.weight), group), group) + down.bias
        )
    return split


def bias_on_every_rank(gpt, group, sequence_parallel):
    """The rows' bias inside the sum: it is added t times. It begins as 0, so the first step does not show it."""
    split = ParallelGPT(gpt, group)
    for block in blocks(split):
        down = block.mlp.down
        down.forward = lambda x, down=down: operators.f_bar(F.linear(x, down.weight, down.bias), group)
    return split


def two_columns_in_a_row(gpt, group, sequence_parallel):
    """Heads mixed up: queries, keys and values cut as one block of rows."""
    split = ParallelGPT(gpt, group)
    for block, whole in zip(blocks(split), blocks(gpt)):
        block.attention.qkv = tensor.ColumnParallelLinear(whole.attention.qkv, group, blocks=1)
    return split


def norms_not_summed(gpt, group, sequence_parallel):
    """Sequence parallelism whose norms see the gradients of their own tokens alone."""
    split = ParallelGPT(gpt, group, True)
    assert split.final_norm._forward_pre_hooks
    split.final_norm._forward_pre_hooks.clear()
    return split


norms_not_summed.sequence_parallel = True  # type: ignore[attr-defined]


def mean_of_means(gpt, group, sequence_parallel):
    """Sequence parallelism whose loss is the mean of the ranks' own means, whatever number of targets they have."""
    split = ParallelGPT(gpt, group, True)
    ranks = dist.get_world_size(group)

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        own = operators.own_part(targets, 1, group)
        return operators.f_bar(F.cross_entropy(logits.flatten(0, 1), own.flatten()).nan_to_num() / ranks, group)

    split.loss = loss
    return split


mean_of_means.sequence_parallel = True  # type: ignore[attr-defined]


def one_mask_for_all(gpt, group, sequence_parallel):
    """Dropout inside the split region drawn for the part: the same heads' weights fall on every rank."""
    split = ParallelGPT(gpt, group)
    for block in blocks(split):
        block.attention.weights_dropout = nn.Dropout(gpt.config.dropout)
    return split


one_mask_for_all.dropout = 0.2  # type: ignore[attr-defined]


def keeps_the_gathered_input(gpt, group, sequence_parallel):
    """Sequence parallelism without the second gather: right, sends less, and keeps what it should not."""
    split = ParallelGPT(gpt, group, True)
    for block in blocks(split):
        for linear in (block.attention.qkv, block.mlp.up):
            linear.forward = lambda x, linear=linear: F.linear(operators.g(x, 1, group), linear.weight, linear.bias)
    return split


keeps_the_gathered_input.sequence_parallel = True  # type: ignore[attr-defined]


def gathers_the_weights(gpt, group, sequence_parallel):
    """Holds a part, but computes with all of it: the weight travels instead of the activations."""
    split = ParallelGPT(gpt, group)
    for block in blocks(split):
        mlp = block.mlp

        def whole_mlp(x: torch.Tensor, mlp=mlp) -> torch.Tensor:
            up, up_bias = (operators.gather_from_group(each, 0, group) for each in (mlp.up.weight, mlp.up.bias))
            down = operators.gather_from_group(mlp.down.weight, 1, group)
            return F.linear(F.gelu(F.linear(x, up, up_bias), approximate="tanh"), down, mlp.down.bias)

        mlp.forward = whole_mlp
    return split


WRONG = {
    replicates: "holds",
    no_sum_in_the_backward_pass: "in step 0: .*the gradient of",
    all_reduce_in_both_passes: "in step 0: .*the gradient of",
    bias_on_every_rank: "in step 1: the loss is off",
    two_columns_in_a_row: "in step 0: the loss is off",
    norms_not_summed: "in step 0: .*the gradient of final_norm",
    mean_of_means: "in step 0: the loss is off",
    one_mask_for_all: "in step 0: the loss is off",
    keeps_the_gathered_input: "sends",
    gathers_the_weights: "sends",
}
"""Which sentence rejects each."""
