"""The limit on an answer's time: what is quick passes, what never ends is stopped and told so."""

from __future__ import annotations

import threading
import time

import pytest

from course_kit.checks.check import within
from course_kit.checks.failed import CheckFailed


def forever():
    while True:
        try:
            time.sleep(0.001)
        except Exception:  # as an answer might swallow everything
            continue


def test_a_quick_answer_is_returned_and_no_timer_stays():
    before = set(threading.enumerate())
    assert within(30, lambda a, b: a + b, 1, b=2) == 3
    for timer in set(threading.enumerate()) - before:
        timer.join(20)  # less than its limit: it has been told to end
    assert not set(threading.enumerate()) - before


def test_what_never_ends_is_stopped():
    with pytest.raises(CheckFailed, match=r"(?s)forever\(\).*an answer within 0.2 s.*stopped after 0.2 s.*the loop"):
        within(0.2, forever, look="the loop")


def test_an_error_is_told_as_by_call_and_a_stub_as_well():
    with pytest.raises(CheckFailed, match="ZeroDivisionError"):
        within(30, lambda: 1 / 0)

    def stub():
        raise NotImplementedError

    with pytest.raises(CheckFailed, match="not written yet"):
        within(30, stub)
