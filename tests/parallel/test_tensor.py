"""Tensor parallelism on real ranks: every step equals the unsplit GPT's; bytes held and sent equal the formulas."""

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_kit import ranks
from course_kit.ranks import RankFailure
from course_lib.collectives.operators import own_part
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel import tensor
from course_lib.parallel.tensor_gpt import ParallelGPT, shardings
from course_lib.train.precision import CastPolicy
from tests.mutants.parallel import tensor as wrong
from tests.parallel import tensor_checks as checks

SMALL = GPTConfig(layers=2, width=16, heads=4, vocab_size=11, context=8)
WIDE = dataclasses.replace(SMALL, width=32, heads=8)
"""Two heads or more on each of 4 ranks: with a single one `@` copies nothing, and autograd keeps all of qkv."""
SHAPES = {
    SMALL: "sgd",
    dataclasses.replace(SMALL, dropout=0.2): "adam",
    dataclasses.replace(SMALL, tied=False, positions="rotary", norm="rmsnorm", bias=False, attention="fused"): "adam",
}
"""And with which optimizer: SGD sees a gradient that is scaled, Adam one that is turned."""


def split(gpt, group, sequence_parallel):
    return ParallelGPT(gpt, group, sequence_parallel)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_step_equals_the_unsplit_gpt(world_size, sequence_parallel):
    how = {"world_size": world_size, "diagnose": world_size == 2}  # once is enough, and it doubles the work
    for config, optimizer in SHAPES.items():
        ranks.run(checks.check_parity, split, config, sequence_parallel, optimizer, **how)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("world_size", [2, 4])
def test_bytes_held_and_sent_equal_the_formulas(world_size, sequence_parallel):
    ranks.run(checks.check_bytes, split, WIDE, sequence_parallel, world_size=world_size, diagnose=False)


def test_logits_without_targets_are_whole_on_every_rank():
    def compare():
        gpt = GPT(SMALL, dtype=torch.float64)
        tokens = torch.arange(8).view(1, 8)
        parts = [ParallelGPT(gpt, None, sequence_parallel)(tokens) for sequence_parallel in (False, True)]
        return [(part - gpt(tokens)).abs().max().item() for part in parts]

    assert all(max(off) < 1e-14 for off in ranks.run(compare, world_size=4))


def test_a_group_that_is_not_the_world():
    """Two groups of two, each with a GPT of its own seed."""

    def two_pairs():
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine = dist.get_rank() // 2
        gpt = GPT(SMALL, seed=mine, dtype=torch.float64)
        group: Any = groups[mine]
        split = ParallelGPT(gpt, group, sequence_parallel=True)
        tokens = torch.arange(9).view(1, 9)
        return abs(float(split(tokens[:, :-1], tokens[:, 1:]) - gpt(tokens[:, :-1], tokens[:, 1:])))

    assert max(ranks.run(two_pairs, world_size=4)) < 1e-14


def in_bf16(policy, sequence_parallel):
    """The largest distance of a gradient from the whole model's under the same policy, over its length."""
    gpt, tokens, off = GPT(SMALL), torch.arange(16).view(2, 8) % 11, []
    ours = ParallelGPT(gpt, None, sequence_parallel)
    with policy():
        losses = [model(tokens, tokens.flip(0)) for model in (gpt, ours)]
    for loss in losses:
        loss.backward()  # outside of the block, as PyTorch advises
    known, theirs = shardings(ours), dict(gpt.named_parameters())
    for name, p in ours.named_parameters():
        cut, whole = known.get(name), theirs[name].grad
        assert whole is not None and p.grad is not None and p.grad.dtype == torch.float32
        part = own_part(whole, cut.dim, None, cut.blocks) if cut else whole
        off.append(float((p.grad - part).norm() / part.norm()))
    return max(off)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("policy", [CastPolicy, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_mixed_precision_passes_through_cut_layers(policy, sequence_parallel):
    """A few roundings of bf16 apart, since ranks' terms are rounded before they are added."""
    off = ranks.run(in_bf16, policy, sequence_parallel, world_size=2, diagnose=False)
    assert max(off) < 8 * torch.finfo(torch.bfloat16).eps


def refusals():
    """What each unsplittable shape is answered with."""
    said = []
    for change in ({"heads": 2, "width": 16}, {"width": 24, "heads": 4, "ffn_width": 18}, {"attention": "fused"}):
        config = dataclasses.replace(SMALL, **change, dropout=0.1)
        try:
            ParallelGPT(GPT(config), None)
        except ValueError as problem:
            said.append(str(problem))
    try:
        tensor.ColumnParallelLinear(nn.Linear(8, 6), None)
    except ValueError as problem:
        said.append(str(problem))
    return said


def test_what_does_not_divide_is_refused_with_the_numbers():
    heads, hidden, fused, column = ranks.run(refusals, world_size=4)[0]
    assert heads == "2 heads do not split over 4 ranks: a head stays in one piece"
    assert "dim 0 of (18, 24) is 18, which does not split into 4 equal parts" in hidden
    assert "attention='explicit', or dropout=0" in fused and "(6, 8) is 6" in column


@pytest.mark.parametrize(("mutant", "says"), wrong.WRONG.items(), ids=[w.__name__ for w in wrong.WRONG])
def test_known_wrong_versions_are_rejected(mutant, says):
    sequence_parallel = getattr(mutant, "sequence_parallel", False)
    by_bytes = says.startswith(("holds", "sends", "keeps"))
    config = dataclasses.replace(WIDE if by_bytes else SMALL, dropout=getattr(mutant, "dropout", 0.0))
    check = checks.check_bytes if by_bytes else checks.check_parity
    extra = () if check is checks.check_bytes else ("sgd",)
    with pytest.raises(RankFailure, match=f"AssertionError: {says}"):
        ranks.run(check, mutant, config, sequence_parallel, *extra, world_size=4, timeout_s=30, diagnose=False)
