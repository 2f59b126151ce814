"""Runs of lesson 08: what a forgetful model gets wrong, which keys a rank needs, and what its formula says."""

from __future__ import annotations

import pytest

from course_kit import ranks
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
    assert turns.exercise_2() == pytest.approx(0.857, abs=1e-3) and turns.exercise_3() == 14
