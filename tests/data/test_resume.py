"""A run that is killed and goes on with another number of ranks and workers reads what it would have read."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_kit import ranks
from course_lib.data.order import Order
from course_lib.data.tokens import TokenFile, write_tokens

STEPS, SAVE = 20, 3
ORDER = Order(n=50, batch=24, seed=9)  # nearly ten epochs, and none ends where a batch does


def train(folder: Path, file: str, kill_at: int | None = None) -> Tensor:
    """Write down the first token of each row; save every third step, and take up what is saved."""
    rank, world_size, path = dist.get_rank(), dist.get_world_size(), folder / file
    start, diary = torch.load(path) if path.exists() else (0, torch.zeros(STEPS, ORDER.batch, dtype=torch.int64))
    data, fresh = TokenFile(folder / "tokens", length=4), start
    for step in range(start, STEPS):
        if (step, rank) == (kill_at, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        diary[step, rank::world_size] = data.rows(ORDER.of(step, rank, world_size))[:, 0]
        if (step + 1) % SAVE == 0 or step + 1 == STEPS:
            dist.all_reduce(diary[fresh : step + 1])
            fresh = step + 1
            if rank == 0:
                torch.save((step + 1, diary), folder / f"{file}.new")
                os.replace(folder / f"{file}.new", path)
    return diary


def all_of(folder: Path, files: list[str]) -> list[Tensor]:
    return [train(folder, file) for file in files]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens, and what a run on two ranks had saved when it was killed, at each of its steps."""
    folder = tmp_path_factory.mktemp("resume")
    write_tokens(folder / "tokens", range(201))
    for step in range(STEPS):
        with pytest.raises(ranks.RankFailure) as caught:
            ranks.run(train, folder, f"killed-{step}", step, world_size=2)
        assert caught.value.reports[1].exit_code == -signal.SIGKILL
        assert (folder / f"killed-{step}").exists() == (step >= SAVE)
    return folder


@pytest.mark.parametrize("world_size", [1, 2, 4, *(pytest.param(n, marks=pytest.mark.nightly) for n in (3, 8))])
def test_nothing_is_lost_and_nothing_twice(folder: Path, world_size: int) -> None:
    due = torch.tensor([[4 * int(sample) for sample in ORDER.of(step)] for step in range(STEPS)])
    files = [f"{step}-on-{world_size}" for step in range(STEPS)]
    for step, file in enumerate(files):
        if (saved := folder / f"killed-{step}").exists():
            (folder / file).write_bytes(saved.read_bytes())
    for diary in ranks.run(all_of, folder, files, world_size=world_size, diagnose=False)[0]:
        assert torch.equal(diary, due)
