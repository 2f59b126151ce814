"""`measure.seconds`: the median, after a warm-up."""

import gc
import time

import pytest

from course_kit import measure
from course_kit.units import Seconds


def test_it_is_the_median_of_the_runs_after_the_warm_up(monkeypatch):
    naps, now = iter([0.3, 0.3, 0.3, 0.02, 0.02, 0.3, 0.02]), [0.0]  # the first two are the warm-up

    def nap():
        now[0] += next(naps)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    median = measure.seconds(nap, repeats=5, warmup=2)
    monkeypatch.undo()
    assert isinstance(median, Seconds) and median == pytest.approx(0.02)


def test_a_second_is_a_second_and_it_calls_as_often_as_asked():
    calls: list[int] = []
    assert measure.seconds(lambda: (time.sleep(0.02), calls.append(1)), repeats=3, warmup=0) >= 0.02
    assert len(calls) == 3


@pytest.mark.parametrize("collecting", [True, False])
def test_the_garbage_collector_works_as_it_does_outside(collecting):
    before, seen = gc.isenabled(), []
    (gc.enable if collecting else gc.disable)()
    try:
        measure.seconds(lambda: seen.append(gc.isenabled()), repeats=2)
        assert [*seen, gc.isenabled()] == [collecting] * 4
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("arguments", [{"repeats": 0}, {"warmup": -1}])
def test_nonsense_is_refused(arguments):
    with pytest.raises(ValueError, match="at least"):
        measure.seconds(lambda: None, **arguments)
