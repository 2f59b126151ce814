"""Ranks that raise, die or hang, with real processes: who did what is reported in time, and the next call works."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from course_kit import ranks
from course_kit.ranks._diagnosis.report import RankReport
from tests.ranks.test_pool import alive

Cell = Callable[..., Callable[..., Any]]


def failure_of(fn: Callable[..., Any], *args: Any, within_s: float = 20.0, **options: Any) -> ranks.RankFailure:
    """The failure of `fn`, known long before a limit of 60 s would end it; and the next call works."""
    ranks.run(int)
    start = time.monotonic()
    with pytest.raises(ranks.RankFailure) as caught:
        ranks.run(fn, *args, **options)
    assert time.monotonic() - start < within_s
    assert ranks.run(int) == [0, 0, 0, 0]
    return caught.value


@pytest.mark.parametrize("verdict", ["send and recv do not fit: …", "rank 1 raised ValueError: no; …", "deadlock: …"])
def test_a_known_cause_is_no_lack_of_time(verdict: str) -> None:
    """One rank may be busy when the contradiction of two others is found."""
    reports = [RankReport(0, "waiting"), RankReport(1, "waiting"), RankReport(2, "running")]
    assert not ranks.RankFailure(verdict, reports).ran_out_of_time
    assert ranks.RankFailure("not done after 3 s: …", reports).ran_out_of_time
    assert not ranks.RankFailure("not done after 3 s: …", reports[:2]).ran_out_of_time


def test_a_rank_that_raises_while_others_wait(cell: Cell) -> None:
    failure = failure_of(
        cell("""
        def check(x):
            if rank() == 2:
                raise ValueError("rank 2 is not happy")  # the line to see

        def f():
            check(1)
            dist.all_reduce(torch.ones(1))
        """)
    )
    assert failure.verdict == (
        "rank 2 raised ValueError: rank 2 is not happy; ranks 0, 1 and 3 wait in all_reduce (cell line 7)"
    )
    report = failure.reports[2]
    assert (report.state, report.error) == ("raised", "ValueError: rank 2 is not happy")
    assert report.traceback.splitlines() == [
        "Traceback (most recent call last):",
        "  cell line 6, in f",
        "    check(1)",
        "  cell line 3, in check",
        '    raise ValueError("rank 2 is not happy")  # the line to see',
        "ValueError: rank 2 is not happy",
    ]


def test_all_ranks_raise_and_the_report_says_it_once(cell: Cell) -> None:
    failure = failure_of(cell("def f(): torch.ones(2, 3) @ torch.ones(2, 3)"))
    assert failure.verdict.startswith("ranks 0, 1, 2 and 3 raised RuntimeError: mat1 and mat2 shapes")
    assert str(failure).count("Traceback") == 1
    assert [report.state for report in failure.reports] == ["raised"] * 4


def test_causes_are_shown(cell: Cell) -> None:
    failure = failure_of(
        cell("""
        def f():
            try:
                {}["key"]
            except KeyError as error:
                raise RuntimeError("no key") from error
        """)
    )
    text = failure.reports[0].traceback
    assert "KeyError: 'key'" in text and "direct cause" in text and "cell line 5, in f" in text


@pytest.mark.parametrize("diagnose", [True, False])
def test_a_rank_that_is_killed(cell: Cell, diagnose: bool) -> None:
    failure = failure_of(
        cell("""
        def f():
            if rank() == 1:
                os.kill(os.getpid(), 9)
            dist.all_reduce(torch.ones(1))
        """),
        diagnose=diagnose,
    )
    assert failure.verdict.startswith("rank 1 died (killed by SIGKILL); ")
    report = failure.reports[1]
    assert (report.state, report.exit_code) == ("died", -signal.SIGKILL)
    if diagnose:
        assert failure.verdict.endswith("; ranks 0, 2 and 3 wait in all_reduce (cell line 4)")


def test_a_rank_that_exits_or_crashes(cell: Cell) -> None:
    exits = failure_of(
        cell("""
        def f():
            if rank() == 3:
                os._exit(7)
        """)
    )
    assert exits.verdict == "rank 3 died (exit code 7); ranks 0, 1 and 2 returned"
    crashes = failure_of(
        cell("""
        def f():
            import ctypes
            if rank() == 0:
                os.write(2, b"last words of C\\n")
                ctypes.string_at(0)
        """)
    )
    report = crashes.reports[0]
    assert (report.state, report.exit_code) == ("died", -signal.SIGSEGV)
    assert "last words of C" in report.last_words and "cell line 5, in f" in report.traceback


def test_sys_exit_is_reported_and_does_not_end_the_rank(cell: Cell) -> None:
    failure = failure_of(cell("def f(): sys.exit(3)"))
    assert failure.verdict == "ranks 0, 1, 2 and 3 raised SystemExit: 3"


def test_a_rank_that_hangs_in_python(cell: Cell) -> None:
    failure = failure_of(
        cell("""
        def f():
            while rank() == 1:
                time.sleep(0.1)
            dist.barrier()
        """),
        timeout_s=1,
    )
    assert failure.verdict == (
        "not done after 1 s: ranks 0, 2 and 3 wait in barrier (cell line 4); rank 1 was still running"
    )
    assert failure.reports[1].traceback.splitlines()[-2:] == ["  cell line 3, in f", "    time.sleep(0.1)"]


def test_a_rank_that_hangs_in_c_and_cannot_answer(cell: Cell) -> None:
    failure = failure_of(
        cell("""
        def f():
            import ctypes
            if rank() == 2:
                ctypes.PyDLL(None).sleep(30)  # keeps the interpreter's lock
        """),
        timeout_s=1,
    )
    assert failure.verdict == "not done after 1 s: ranks 0, 1 and 3 returned; rank 2 was still running"
    assert "cell line 4, in f" in failure.reports[2].traceback


def test_a_result_that_cannot_be_shipped(cell: Cell) -> None:
    failure = failure_of(
        cell("""
        def f():
            import threading
            return threading.Lock() if rank() == 1 else 1
        """)
    )
    assert failure.reports[1].error == (
        "TypeError: the result, a lock, cannot be shipped back: cannot pickle '_thread.lock' object"
    )
    assert failure.reports[0].state == "returned"


def test_prints_before_a_failure_are_kept(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    failure_of(
        cell("""
        def f():
            print("rank", rank(), "was here")
            print("unfinished line", end="")
            if rank() == 3:
                raise ValueError
            dist.barrier()
        """)
    )
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if "was here" in line] == [f"[rank {r}] rank {r} was here" for r in range(4)]
    assert "[rank 3] unfinished line" in shown


def test_the_call_after_a_failure_takes_little_longer(cell: Cell) -> None:
    fails = cell("def f(): raise ValueError if rank() else None")
    seconds = []
    for _ in range(5):
        with pytest.raises(ranks.RankFailure):
            ranks.run(fails)
        start = time.monotonic()
        ranks.run(int)
        seconds.append(time.monotonic() - start)
    assert min(seconds) < 2  # the least of five; where torch is imported anew it takes longer, however quiet it is


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


def test_a_failure_renders_briefly_in_a_notebook(cell: Cell) -> None:
    failure = failure_of(cell("def f(): raise ValueError(f'an object at {object()}')"))
    lines = failure._render_traceback_()
    assert lines[0].startswith(
        "RankFailure: ranks 0, 1, 2 and 3 raised ValueError: an object at <object object at 0x…>"
    )
    assert not any("course_lib" in line for line in lines)


def test_a_failure_survives_pickling(cell: Cell) -> None:
    import pickle

    failure = failure_of(cell("def f(): raise ValueError('no')"))
    assert str(pickle.loads(pickle.dumps(failure))) == str(failure)
