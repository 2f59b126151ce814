"""The experts explorer: its router, its queues, its numbers, its sentence and its picture, without a browser."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from course_lib import predict
from course_lib.model.experts import ExpertConfig, ExpertMLP
from course_lib.parallel.mesh import Mesh
from course_pages.lesson13.explorer import (
    CAPACITY_FACTORS,
    EXPERTS,
    SKEWS,
    TOKENS,
    ExpertsExplorer,
    choices,
)


def test_a_router_with_more_skew_prefers_some_more() -> None:
    """No token takes an expert twice; the longest queue of first choices grows, and at last is nearly everybody."""
    for experts in EXPERTS:
        longest = [int(choices(experts, skew)[:, 0].bincount().max()) for skew in SKEWS]
        assert longest == sorted(longest) and longest[-1] > 0.85 * max(TOKENS)
        assert longest[0] < max(TOKENS) / experts + 13  # 3 standard deviations and more
        assert all((choices(experts, skew)[:, 0] != choices(experts, skew)[:, 1]).all() for skew in SKEWS)


def test_numbers_against_a_dense_layer_are_those_of_the_library() -> None:
    """`ExpertMLP` has two matrices for each expert and a router; a dense MLP has two matrices."""
    costs = ExpertsExplorer(experts=4, top_k=2).costs
    small = ExpertMLP(ExpertConfig(width=8, hidden=32, experts=4))
    assert sum(each.numel() for each in small.parameters()) == 4 * 2 * 8 * 32 + 4 * 8
    assert costs["parameters"] == (4 * 2 * 1024 * 4096 + 4 * 1024, 2 * 1024 * 4096)
    config = ExpertConfig(width=1024, hidden=4096, experts=4, top_k=2)
    assert costs["flops"] == (int(predict.layer_flops(config, 1)), 4 * 1024 * 4096)


@pytest.mark.parametrize("factor", CAPACITY_FACTORS)
def test_traffic_of_a_balanced_router_is_the_formulas(factor: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ranks send, row by row, when all experts get equally many from everybody, is `predict.expert_traffic`."""
    explorer = ExpertsExplorer(tokens=64, experts=4, ranks=4, capacity_factor=factor)
    token = torch.arange(64)
    even = torch.stack([token % 4, (token + 1) % 4], 1)
    monkeypatch.setattr("course_pages.lesson13.explorer.choices", lambda experts, skew: even)
    config = ExpertConfig(1024, 4096, 4, 2, factor)
    due = predict.expert_traffic(config, Mesh({"expert": 4}), 64, 2)["expert"].modelled_bytes["all_to_all"]
    assert explorer.costs["sent"][1] == due
    if factor is None or factor >= 1:
        assert explorer.costs["sent"] == (due, due) and explorer.costs["rows"] == (32, 32)
        assert explorer.empty == (None if factor is None else 4 * 32 * (factor - 1))


def test_the_plan_keeps_what_finds_a_place() -> None:
    explorer = ExpertsExplorer(tokens=64, experts=8, skew=2.0, ranks=8, capacity_factor=1.0)
    kept = F.one_hot(explorer.wanted[explorer.kept], 8).sum(0)
    assert [sum(explorer.plan.loads(rank)) for rank in range(8)] == kept.tolist() and kept.max() == 16
    assert explorer.empty == 128 - int(kept.sum()) > 0
