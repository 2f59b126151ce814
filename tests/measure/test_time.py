"""`measure.seconds`: the median, after a warm-up."""

from __future__ import annotations

import time

import pytest

from course_kit import measure
from course_kit.units import Seconds


def test_it_is_the_median_of_the_runs_after_the_warm_up():
    naps = iter([0.3, 0.02, 0.3, 0.02, 0.02, 0.3, 0.02])  # the first is the warm-up
    median = measure.seconds(lambda: time.sleep(next(naps)), repeats=6 - 1, warmup=2)
    assert isinstance(median, Seconds) and 0.02 <= median < 0.2


def test_it_calls_as_often_as_asked():
    calls: list[int] = []
    measure.seconds(lambda: calls.append(1), repeats=3, warmup=0)
    assert len(calls) == 3


@pytest.mark.parametrize("arguments", [{"repeats": 0}, {"warmup": -1}])
def test_nonsense_is_refused(arguments):
    with pytest.raises(ValueError, match="at least"):
        measure.seconds(lambda: None, **arguments)
