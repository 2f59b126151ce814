"""Tensor parallelism on real ranks: bytes held and sent equal the formulas. Its steps: `test_parity.py`."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.collectives.operators import own_part
from course_lib.model.gpt import GPT
from course_lib.parallel import tensor
from course_lib.parallel.tensor_gpt import ParallelGPT, shardings, whole_state_dict
from course_lib.train.precision import CastPolicy
from tests.mutants.parallel import tensor as wrong
from tests.parallel.judging import accepted, on_ranks, refused
from tests.parallel.parity import parity
from tests.parallel.sides import Cut
from tests.parallel.tensor_checks import check_bytes
from tests.parallel.test_parity import PADDED, but

SMALL = PADDED.config
WIDE = dataclasses.replace(SMALL, width=32, heads=8)
"""Two heads or more on each of 4 ranks: with a single one `@` copies nothing, and autograd keeps all of qkv."""


@pytest.mark.parametrize("sequence_parallel", [False, True])
@on_ranks(2, 4, diagnose=False)
def test_bytes_held_and_sent_equal_the_formulas(sequence_parallel):
    check_bytes(ParallelGPT, WIDE, sequence_parallel)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@on_ranks(4)
def test_logits_without_targets_are_whole_on_every_rank(sequence_parallel):
    gpt, tokens = GPT(SMALL, dtype=torch.float64), torch.arange(8).view(1, 8)
    assert (ParallelGPT(gpt, None, sequence_parallel)(tokens) - gpt(tokens)).abs().max() < 1e-14


@on_ranks(4)
def test_a_group_that_is_not_the_world():
    """Two groups of two, each with a GPT of its own seed."""
    groups, mine = [dist.new_group([0, 1]), dist.new_group([2, 3])], dist.get_rank() // 2
    gpt, group, tokens = GPT(SMALL, seed=mine, dtype=torch.float64), groups[mine], torch.arange(9).view(1, 9)
    split = ParallelGPT(gpt, group, sequence_parallel=True)  # type: ignore[arg-type]
    assert abs(float(split(tokens[:, :-1], tokens[:, 1:]) - gpt(tokens[:, :-1], tokens[:, 1:]))) < 1e-14


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("policy", [CastPolicy, lambda: torch.autocast("cpu", torch.bfloat16)])
@on_ranks(2, diagnose=False)
def test_mixed_precision_passes_through_cut_layers(policy, sequence_parallel):
    """Gradients are a few roundings of bf16 apart, since ranks' terms are rounded before they are added."""
    gpt, tokens = GPT(SMALL), torch.arange(16).view(2, 8) % 11
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
        off = float((p.grad - part).norm() / part.norm())
        assert off < 8 * torch.finfo(torch.bfloat16).eps, f"the gradient of {name} is off by {off:.1e}"


FROZEN = ("token_embedding", "0.attention.qkv", "0.attention.out", "1.mlp", "final_norm")


@dataclasses.dataclass(frozen=True)
class PartlyFrozen:
    """A problem of `parity`."""

    everything: bool

    def __call__(self, seed):
        gpt = GPT(SMALL, seed=seed, dtype=torch.float64)
        for name, parameter in gpt.named_parameters():
            parameter.requires_grad_(not (self.everything or any(part in name for part in FROZEN)))
        return gpt, PADDED.batch


@pytest.mark.parametrize("sequence_parallel", [False, True])
@on_ranks(2, diagnose=False)
def test_a_gpt_that_is_cut_trains_what_the_whole_one_trains(sequence_parallel):
    """What is frozen in the whole one stays frozen; the joined weights are the whole one's after these steps."""
    split = functools.partial(ParallelGPT, group=None, sequence_parallel=sequence_parallel)
    parity(Cut, split, PartlyFrozen(False), "adam", steps=2)
    gpt, batch = PartlyFrozen(True)(0)
    ours = split(gpt)
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    assert abs(ours(*batch(0)) - gpt(*batch(0))) < 1e-11
    whole = whole_state_dict(ours)
    assert all(torch.equal(whole[name], parameter) for name, parameter in gpt.named_parameters())


def split(**change):
    ParallelGPT(GPT(dataclasses.replace(SMALL, **change, dropout=0.1)), None)


MISTAKES: list[tuple[Any, str]] = [
    (lambda: split(heads=2), "^2 heads do not split over 4 ranks: a head stays in one piece$"),
    (lambda: split(width=24, ffn_width=18), r"dim 0 of \(18, 24\) is 18, which does not split into 4 equal parts"),
    (lambda: split(attention="fused"), "attention='explicit', or dropout=0"),
    (lambda: tensor.ColumnParallelLinear(nn.Linear(8, 6), None), r"\(6, 8\) is 6"),
]


def test_what_does_not_divide_is_refused_with_the_numbers():
    assert refused(4, MISTAKES) == []


def test_known_wrong_ones_are_refused():
    cases: dict[Any, Any] = {}
    for mutant, says in wrong.WRONG.items():
        sequence_parallel, dropout = getattr(mutant, "sequence_parallel", False), getattr(mutant, "dropout", 0.0)
        if says.startswith(("holds", "sends", "keeps")):
            cases[mutant] = (says, check_bytes, mutant, WIDE, sequence_parallel, {})
        else:
            cut = functools.partial(mutant, group=None, sequence_parallel=sequence_parallel)
            cases[mutant] = (says, parity, Cut, cut, but(PADDED, dropout=dropout), "sgd", {})
    assert accepted(4, cases) == {}
