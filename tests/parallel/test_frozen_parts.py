"""What is frozen stays frozen where a layer is cut: in tensor parallelism and among experts."""

from __future__ import annotations

import pytest
import torch

from course_kit import ranks
from course_lib.model.experts import ExpertConfig, ExpertMLP
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.experts import ParallelExperts
from course_lib.parallel.mesh import Mesh, process_groups
from course_lib.parallel.tensor_gpt import ParallelGPT, whole_state_dict

SMALL = GPTConfig(layers=2, width=16, heads=2, vocab_size=11, context=8)
FROZEN = ("token_embedding", "0.attention.qkv", "0.attention.out", "1.mlp", "final_norm")


def steps_of_a_gpt(sequence_parallel, everything):
    gpt = GPT(SMALL, dtype=torch.float64)
    for name, parameter in gpt.named_parameters():
        parameter.requires_grad_(not (everything or any(part in name for part in FROZEN)))
    frozen = {name for name, parameter in gpt.named_parameters() if not parameter.requires_grad}
    ours = ParallelGPT(gpt, None, sequence_parallel)
    assert frozen == {name for name, parameter in ours.named_parameters() if not parameter.requires_grad}
    tokens = torch.arange(16).view(2, 8) % 11
    if everything:
        return float((ours(tokens, tokens) - gpt(tokens, tokens)).abs())
    for model in (gpt, ours):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(tokens, tokens).backward()
            optimizer.step()
    whole = whole_state_dict(ours)
    return max(float((whole[name] - parameter).abs().max()) for name, parameter in gpt.named_parameters())


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_gpt_that_is_cut_trains_what_the_whole_one_trains(sequence_parallel, everything):
    off = ranks.run(steps_of_a_gpt, sequence_parallel, everything, world_size=2, diagnose=False)
    assert max(off) < 1e-11


def experts():
    for name in ("up_EDF", "down_EFD", "router"):
        whole = ExpertMLP(ExpertConfig(8, 8, 4))
        getattr(whole, name).requires_grad_(False)
        cut = ParallelExperts(whole, process_groups(Mesh({"data": 2, "expert": 2, "tensor": 1})))
        cut(torch.ones(3, 8, requires_grad=True)).sum().backward()
        same = zip(whole.parameters(), cut.parameters())
        assert all(theirs.requires_grad == ours.requires_grad == (ours.grad is not None) for theirs, ours in same), name


def test_so_do_experts():
    ranks.run(experts, world_size=4, diagnose=False)
