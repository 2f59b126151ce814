"""What trains on both cores: each run with each seed, once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from course_pages.lesson11 import process


def test_two_ranks_share_the_runs_and_each_curve_is_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[int, int]] = []

    def in_turn(fn: Any, *args: Any, world_size: int, diagnose: bool, timeout_s: float) -> list[Any]:
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


def test_the_gap_at_the_end_is_a_mean_of_seeds_and_a_run_that_never_falls_so_far_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    process.report({"no delay": [[3.0, 1.0], [3.0, 2.0]], "late": [[1.5, 1.5], [3.0, 2.5]]})
    usual, late = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert usual == "no delay +0.00 nats at the end; below 2 nats after steps 20 None"
    assert late == "late +0.50 nats at the end; below 2 nats after steps 19 None"


def test_the_quickest_of_several_runs_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.timeit, "repeat", lambda work, number, repeat: [3.0, 1.0, 2.0, 0.5][:repeat])
    assert process.best(int, times=3) == 1.0
