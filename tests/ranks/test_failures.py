"""Ranks that raise, die or hang, with real processes: who did what is reported in time, and the next call works."""

import os
import pickle
import signal

import pytest

from course_kit import ranks
from course_kit.ranks._diagnosis.report import RankReport
from tests.ranks.conftest import Cell, alive, failure_of, programs


@pytest.mark.parametrize("verdict", ["send and recv do not fit: …", "rank 1 raised ValueError: no; …", "deadlock: …"])
def test_a_known_cause_is_no_lack_of_time(verdict: str) -> None:
    """One rank may be busy when the contradiction of two others is found."""
    reports = [RankReport(0, "waiting"), RankReport(1, "waiting"), RankReport(2, "running")]
    assert not ranks.RankFailure(verdict, reports).ran_out_of_time
    assert ranks.RankFailure("not done after 3 s: …", reports).ran_out_of_time
    assert not ranks.RankFailure("not done after 3 s: …", reports[:2]).ran_out_of_time


FAILS = programs("""
# a rank raises while others wait
def check(x):
    if rank() == 2:
        raise ValueError("rank 2 is not happy")  # the line to see

def f():
    check(1)
    dist.all_reduce(torch.ones(1))
> rank 2 raised ValueError: rank 2 is not happy; ranks 0, 1 and 3 wait in all_reduce (cell line 7)
| rank 2 raised ValueError: rank 2 is not happy:
|     Traceback (most recent call last):
|       cell line 6, in f
|         check(1)
|       cell line 3, in check
|         raise ValueError("rank 2 is not happy")  # the line to see
|     ValueError: rank 2 is not happy
# all ranks raise, which is said once
raise KeyError("key")
> ranks 0, 1, 2 and 3 raised KeyError: 'key'
| ranks 0, 1, 2 and 3 raised KeyError: 'key':
|     Traceback (most recent call last):
|       cell line 2, in f
|         raise KeyError("key")
|     KeyError: 'key'
# a cause
try:
    {}["key"]
except KeyError as error:
    raise RuntimeError("no key") from error
> ranks 0, 1, 2 and 3 raised RuntimeError: no key
|     KeyError: 'key'
|
|     The above exception was the direct cause of the following exception:
|
|     Traceback (most recent call last):
|       cell line 5, in f
|         raise RuntimeError("no key") from error
|     RuntimeError: no key
# an object whose address is another one on each rank
raise ValueError(f"an object at {object()}")
> ranks 0, 1, 2 and 3 raised ValueError: an object at <object object at 0x…>
# a rank is killed
if rank() == 1:
    os.kill(os.getpid(), 9)
dist.all_reduce(torch.ones(1))
> rank 1 died (killed by SIGKILL); ranks 0, 2 and 3 wait in all_reduce (cell line 4)
# a rank exits
if rank() == 3:
    os._exit(7)
> rank 3 died (exit code 7); ranks 0, 1 and 2 returned
# a rank crashes
import ctypes
if rank() == 0:
    os.write(2, b"last words of C\\n")
    ctypes.string_at(0)
> rank 0 died (killed by SIGSEGV); ranks 1, 2 and 3 returned
|       cell line 5, in f
|         ctypes.string_at(0)
|     last words of C
|     Fatal Python error: Segmentation fault
# sys.exit, which does not end the rank
sys.exit(3)
> ranks 0, 1, 2 and 3 raised SystemExit: 3
# a result that cannot be shipped
import threading
return threading.Lock() if rank() == 1 else 1
> rank 1 raised TypeError: the result, a lock, cannot be shipped back: cannot pickle '_thread.lock' object;
> ranks 0, 2 and 3 returned
# a rank hangs in Python [timeout_s=1]
while rank() == 1:
    time.sleep(0.1)
dist.barrier()
> not done after 1 s: ranks 0, 2 and 3 wait in barrier (cell line 4); rank 1 was still running
|       cell line 3, in f
|         time.sleep(0.1)
# a rank hangs in C and cannot answer [timeout_s=1]
import ctypes
if rank() == 2:
    ctypes.PyDLL(None).sleep(30)  # keeps the interpreter's lock
> not done after 1 s: ranks 0, 1 and 3 returned; rank 2 was still running
|       cell line 4, in f
|         ctypes.PyDLL(None).sleep(30)  # keeps the interpreter's lock
""")


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
