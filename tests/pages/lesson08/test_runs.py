"""Runs of lesson 08: what a forgetful model gets wrong, which keys a rank needs, and what its formula says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

from course_kit import ranks
from course_lib.model.gpt import Attention
from course_lib.parallel import context
from course_pages.lesson08 import second, turns


def test_a_model_without_sums_has_the_right_loss_and_wrong_gradients() -> None:
    off_loss, off, apart = ranks.run(second.what_it_forgets, 2, world_size=4)[0]
    assert off_loss < 1e-12 and min(off.values()) > 0.3 and apart > 1e-4
    assert set(off) == {"norms", "biases behind sums"}


def test_copies_of_shared_keys_need_each_others_gradients() -> None:
    def pairs_of(rank: int, t: int, heads: int, pairs: int) -> list[int]:
        return [rank * pairs // t]

    for rank, (held, off, alone, added) in enumerate(ranks.run(second.grouped, pairs_of, world_size=4)):
        assert held == [rank // 2] and max(off, added) < 1e-12 < 0.1 < alone


def test_the_share_of_products_follows_the_formula() -> None:
    """By hand: GPT-3 on H100s with 4 and with 2 all-reduces waited for, 1.2 billion on V100s."""
    inside = (8, 12_288, 0.4 * 989e12, 450e9)
    assert turns.share_of_products(*inside) == pytest.approx(0.900, abs=5e-4)
    assert turns.share_of_products(*inside, waited_for=2) == pytest.approx(0.947, abs=5e-4)
    assert 8 * turns.share_of_products(8, 1536, 39e12, 150e9) == pytest.approx(6.33, abs=5e-3)
    assert turns.EXERCISES[1] == pytest.approx(0.857, abs=1e-3) and turns.EXERCISES[2] == pytest.approx(192.9, abs=0.1)


def test_gradients_of_keys_come_home_in_one_hop_more() -> None:
    def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return context.ring_attention(q[None, None], k[None, None], v[None, None], "plain")[0, 0]

    for forth, back, off in ranks.run(second.around_the_ring, ours, world_size=4):
        assert max(off) < 1e-12 and back / forth == pytest.approx(7 / 3, rel=0.03)


class Separate(Attention):
    """Attention with a layer each for queries, keys and values."""

    def __init__(self, whole: Attention) -> None:
        super().__init__(whole.config)
        del self.qkv
        parts = [nn.Linear(64, 64, dtype=torch.float64) for _ in range(3)]
        for part, weight, bias in zip(parts, whole.qkv.weight.chunk(3), whole.qkv.bias.chunk(3)):
            part.load_state_dict({"weight": weight, "bias": bias})
        self.q, self.k, self.v = parts
        self.out = whole.out

    def qkv(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.cat([self.q(x), self.k(x), self.v(x)], dim=-1)


@pytest.mark.parametrize("prepared", [False, True])
def test_a_plan_of_pytorchs_cuts_attention_as_we_do(prepared: bool) -> None:
    plan: dict[str, Any] = {f"attention.{name}": ColwiseParallel() for name in ("q", "k", "v")}
    if prepared:
        plan["attention"] = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    plan |= {"attention.out": RowwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
    off, sent = ranks.run(second.beside_pytorch, plan, Separate, world_size=2)[0]
    assert off < 1e-12 and sent["mlp, DTensor"] == pytest.approx(sent["mlp, ours"], rel=0.05)
    assert sent["attention, DTensor"] / sent["attention, ours"] == pytest.approx(1 if prepared else 2, rel=0.05)
