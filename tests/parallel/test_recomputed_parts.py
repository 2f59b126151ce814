"""Recompute where gradients are summed over ranks: those of a part that runs again must be summed, too, and once."""

import copy

import pytest
import torch
from torch import nn

from course_kit import measure
from course_lib.model.gpt import GPT, MLP, Attention, Block, GPTConfig
from course_lib.parallel.context import ContextParallelGPT
from course_lib.parallel.tensor_gpt import ParallelGPT
from course_lib.train.recompute import RecomputedLayers, recompute_only
from tests.parallel.judging import on_ranks

SMALL = GPTConfig(layers=2, width=16, heads=2, vocab_size=11, context=16)
CUTS = {"context": ContextParallelGPT, "sequence": lambda gpt: ParallelGPT(gpt, None, sequence_parallel=True)}


def layers(model, every):
    model.blocks = RecomputedLayers(model.blocks, every)
    return model


def both(model):
    return layers(recompute_only(model, Attention), 2)


def copy_of_used(model):
    """A copy of a model whose forward pass has run: its parameters are others, and its modules' hooks are copied."""
    model(torch.zeros(2, 16, dtype=torch.int64), torch.zeros(2, 16, dtype=torch.int64))
    return copy.deepcopy(model)


WAYS = {
    "each block": lambda model: layers(model, 1),
    "two blocks": lambda model: layers(model, 2),
    "only blocks": lambda model: recompute_only(model, Block),
    "only attention": lambda model: recompute_only(model, Attention),
    "only MLPs": lambda model: recompute_only(model, MLP),
    "only norms": lambda model: recompute_only(model, nn.LayerNorm),
    "only scores": lambda model: recompute_only(model, Attention, "explicit"),
    "one in another": both,
    "blocks of a copy": lambda model: layers(copy_of_used(model), 2),
}


def step(model):
    """The gradients of two passes, and the bytes that all-reduces send in the second."""
    tokens = torch.randint(0, 11, (2, 17), generator=torch.Generator().manual_seed(0))
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    model(*batch).backward()
    with measure.traffic() as sent:
        model(*batch).backward()
    return {name: p.grad for name, p in model.named_parameters()}, sent.modelled_bytes["all_reduce"]


@pytest.mark.parametrize("cut", CUTS)
@on_ranks(2, diagnose=False)
def test_recomputed_parts_have_the_same_gradients_and_send_as_much(cut):
    gpt = GPT(SMALL, dtype=torch.float64)
    wanted, due = step(CUTS[cut](gpt))
    for way, recomputed in WAYS.items():
        found, sent = step(recomputed(CUTS[cut](gpt)))
        assert sent == due, f"{way}: all-reduces send {sent} bytes, not {due}"
        for name, gradient in wanted.items():
            off = (found[name] - gradient).abs().max()
            assert off < 1e-11, f"{way}: the gradient of {name} is off by {off:.1e}"


@on_ranks(2, diagnose=False)
def test_so_has_a_layer_that_is_used_in_both_ways():
    """A layer that is used plainly and recomputed in one pass: each gradient is summed where it comes."""
    found = []
    for again in (False, True):
        model = ContextParallelGPT(GPT(SMALL, dtype=torch.float64))
        tokens = torch.arange(32).view(2, 16) % 11
        first = model(tokens, tokens)
        if again:
            recompute_only(model, Block)
        (first + model(tokens, tokens.flip(0))).backward()
        found.append([p.grad for p in model.parameters()])
    for plain, mixed in zip(*found):
        assert plain is not None and mixed is not None and (plain - mixed).abs().max() < 1e-11
