"""What trains on both cores: each run with each seed, once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from course_pages.lesson11 import process


def test_two_ranks_share_the_runs_and_each_curve_is_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[int, int]] = []

    def in_turn(fn: Any, *args: Any, world_size: int, diagnose: bool) -> list[Any]:
        shares = []
        for rank in range(world_size):
            monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
            shares.append(fn(*args))
        assert {len(share) for share in shares} == {3}, "half of the work each"
        return shares

    def losses(delay: int, seed: int) -> list[float]:
        done.append((delay, seed))
        return [10.0 * delay + seed]

    monkeypatch.setattr(process.ranks, "run", in_turn)
    assert process.trained(losses, {"usual": 5, "late": 0}) == {"usual": [[50], [51], [52]], "late": [[0], [1], [2]]}
    assert len(done) == 6
