"""Ranks that raise, die or hang, with real processes: who did what is reported in time, and the next call works.

So it is where ranks are fresh Pythons, and with a fork of the notebook's own process.
"""

import os
import pickle
import signal

import pytest

from course_kit import ranks
from course_kit.ranks._diagnosis.report import RankReport
from course_kit.ranks._processes import launch
from tests.ranks.conftest import Cell, alive, failure_of, programs


@pytest.mark.parametrize("verdict", ["send and recv do not fit: …", "rank 1 raised ValueError: no; …", "deadlock: …"])
def test_a_known_cause_is_no_lack_of_time(verdict: str) -> None:
    """One rank may be busy when the contradiction of two others is found."""
    reports = [RankReport(0, "waiting"), RankReport(1, "waiting"), RankReport(2, "running")]
    assert not ranks.RankFailure(verdict, reports).ran_out_of_time
    assert ranks.RankFailure("not done after 3 s: …", reports).ran_out_of_time
    assert not ranks.RankFailure("not done after 3 s: …", reports[:2]).ran_out_of_time


FAILS = programs("failing")


@pytest.mark.parametrize("what", FAILS)
def test_a_failure_is_told(cell: Cell, what: str) -> None:
    program = FAILS[what]
    failure = failure_of(cell(program.source), world_size=4, **program.options)
    program.assert_told_by(failure)
    assert failure._render_traceback_()[0] == f"RankFailure: {program.verdict}"
    assert str(pickle.loads(pickle.dumps(failure))) == str(failure)


def test_a_rank_that_is_killed_without_diagnosis(cell: Cell) -> None:
    killed = cell("def f():\n    if rank() == 1: os.kill(os.getpid(), 9)\n    dist.all_reduce(torch.ones(1))")
    failure = failure_of(killed, diagnose=False)
    assert failure.verdict.startswith("rank 1 died (killed by SIGKILL); ")
    assert (failure.reports[1].state, failure.reports[1].exit_code) == ("died", -signal.SIGKILL)


def test_prints_before_a_failure_are_kept(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    failure_of(
        cell("""
        def f():
            print("rank", rank(), "was here")
            print("unfinished line", end="")
            if rank() == 1:
                raise ValueError
            dist.barrier()
        """)
    )
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if "was here" in line] == [f"[rank {r}] rank {r} was here" for r in range(2)]
    assert "[rank 1] unfinished line" in shown


def test_an_idle_rank_that_is_killed_is_replaced_before_the_next_call() -> None:
    with ranks.Ranks(2) as pool:
        first = pool.run(os.getpid)
        os.kill(first[1], signal.SIGKILL)
        assert not alive(first[1])
        second = pool.run(os.getpid)
        assert not set(first) & set(second)


def test_a_killed_zygote_takes_its_ranks_along_and_is_replaced() -> None:
    with ranks.Ranks(2) as pool:
        assert pool._workers is not None
        pids = pool.run(os.getpid)
        pool._workers.launcher._zygote.kill()  # type: ignore[attr-defined]
        assert not any(alive(pid) for pid in pids)
        assert pool.run(int) == [0, 0]
    with ranks.Ranks(2) as pool:
        assert pool.run(int) == [0, 0]


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
