"""The launcher for systems without fork, tried where there is one; and a fork of the notebook's own process."""

import os

import pytest

from course_kit import ranks
from course_kit.ranks._processes import launch
from tests.ranks.conftest import Cell, alive


def test_a_fork_of_the_notebooks_process_harms_nothing() -> None:
    with ranks.Ranks(2) as pool:
        pids = pool.run(os.getpid)
        child = os.fork()
        if child == 0:
            try:
                pool.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert pool.run(os.getpid) == pids


def test_ranks_without_fork_work_fail_and_recover(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are fresh Pythons, as on Windows."""
    launcher = launch.SpawnLauncher()
    monkeypatch.setattr(launch, "_launcher", launcher)
    with ranks.Ranks(2) as pool:
        pids = pool.run(os.getpid)
        assert pool.run(cell("def f(): x = torch.ones(1); dist.all_reduce(x); return x.item()")) == [2.0, 2.0]
        with pytest.raises(ranks.RankFailure, match=r"rank 1 died \(killed by SIGKILL\)"):
            pool.run(cell("def f(): os.kill(os.getpid(), 9) if rank() else dist.barrier()"))
        assert not set(pool.run(os.getpid)) & set(pids)
    launcher.close()
    assert not any(alive(pid) for pid in pids)
