"""The clock of limits, beside programs that take the cores."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from course_kit import own_time, ranks
from course_kit.checks.check import CheckFailed, within
from course_kit.own_time import BUSY, OwnTime
from course_kit.ranks._diagnosis.report import Evidence

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this system does not tell")
CROWD = 3 * (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("threads", "lost_s"),
    [
        ({"a": (1.0, 0.0)}, 0.0),
        ({"a": (0.2, 0.8)}, 0.8),
        ({"a": (0.1, 0.4)}, 0.4),  # it slept for the other half, which counts
        (dict.fromkeys("abcd", (0.5, 0.5)), 0.0),  # four on two cores: they would have no more anywhere
        (dict.fromkeys("abcd", (0.25, 0.75)), 0.5),  # half of that
        ({}, 0.0),
    ],
)
def test_what_others_took_is_lost_and_what_own_programs_took_from_each_other_is_not(
    threads: dict, lost_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second on two cores; threads with the seconds that they ran, and that they waited for a core."""
    now = iter((99.0, 100.0, 101.0, 101.0))
    monkeypatch.setattr(own_time.time, "monotonic", lambda: next(now))
    seen = iter((dict.fromkeys(threads, (0.0, 0.0)), threads))
    monkeypatch.setattr(OwnTime, "_threads", lambda own: next(seen))
    monkeypatch.setattr(own_time.os, "sched_getaffinity", lambda pid: {0, 1})
    own = OwnTime(list)
    own.look()  # later looks are compared with the first one
    own.look()
    assert own.lost_s == pytest.approx(lost_s) and own.left_s(11) == pytest.approx(9 + lost_s)
    assert own.cannot_say(0.05) == (lost_s >= 0.05 * own_time.MOST)


def test_a_limit_that_proves_nothing_blames_the_machine() -> None:
    busy, quiet = (Evidence(2, 1, cannot_say=cannot_say).failure().verdict for cannot_say in (True, False))
    assert BUSY in busy and BUSY not in quiet


def test_sleeping_and_waiting_count() -> None:
    own = OwnTime(lambda: [os.getpid()])
    time.sleep(0.5)
    own.look()
    assert own.lost_s < 0.25 and own.left_s(10) < 9.75
    assert not own.cannot_say(10)


# --- with programs that make load ---


@pytest.fixture
def crowd() -> Iterator[None]:
    """Programs that take the cores: any other process gets a small share of one."""
    command = [sys.executable, "-c", "print('at work', flush=True)\nwhile True: pass"]
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(CROWD)]
    for program in programs:
        assert program.stdout and program.stdout.readline()
    yield
    for program in programs:
        program.kill()
    for program in programs:
        program.communicate()


def computed(cpu_s: float) -> float:
    """Compute for so many seconds of this process's own; returns the wall seconds that passed."""
    start, end = time.monotonic(), time.process_time() + cpu_s
    while time.process_time() < end:
        sum(range(2000))
    return time.monotonic() - start


def forever() -> None:
    while True:
        sum(range(2000))


@pytest.mark.timed
def test_what_others_took_does_not_count(crowd: None) -> None:
    own = OwnTime(lambda: [os.getpid()])
    passed_s = 0.0
    for _ in range(4):
        passed_s += computed(0.05)
        own.look()
    assert passed_s > 0.4, "the crowd is no crowd"
    assert passed_s - own.lost_s < 0.75 * passed_s


@pytest.mark.timed
def test_ranks_have_their_time_on_a_busy_machine(crowd: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that needs half of its limit, and here several times its limit by the clock on the wall."""
    monkeypatch.setattr(own_time, "MOST", 200)  # however busy the machine is
    taken = ranks.run(computed, 0.25, world_size=2, timeout_s=0.6)
    assert max(taken) > 0.6, "the crowd is no crowd"


@pytest.mark.timed
def test_a_limit_that_was_stretched_to_its_end_blames_the_machine(crowd: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_time, "MOST", 0.2)  # a fifth is lost soon, whatever share this process gets
    with pytest.raises(ranks.RankFailure) as caught:
        ranks.run(forever, world_size=2, timeout_s=1)
    assert BUSY in caught.value.verdict
    with pytest.raises(CheckFailed, match=BUSY):
        within(1, forever)
