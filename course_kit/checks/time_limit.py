"""A limit on an answer's time, so that a check of a programme that would run for a century can say so."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from course_kit.checks.check import call
from course_kit.checks.failed import call_text, fail
from course_kit.checks.left_behind import MayChange


class OutOfTime(BaseException):
    """Raised inside an answer whose time is up. No `except Exception` of the answer stops it."""


def within(seconds: float, fn: Callable, *args: Any, look: str = "", may_change: MayChange = (), **kwargs: Any) -> Any:
    """Like `check.call`, but stopped after `seconds` of wall-clock time.

    It can only stop what runs in Python: a single long operation of PyTorch ends first.

    Args:
        seconds: choose many times what a good answer takes; the machine may be busy.
        fn: a student's function.
        args, kwargs: its arguments.
        look: where to look when it took too long.
        may_change: what of what it was given the contract allows to change, as for `check.call`.

    Raises:
        CheckFailed: the time was up, or the function raised an error.
    """
    caller, lock, done = threading.get_ident(), threading.Lock(), False

    def stop() -> None:
        with lock:
            if not done:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(caller), ctypes.py_object(OutOfTime))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        result = call(fn, *args, may_change=may_change, **kwargs)
        with lock:
            done = True
        return result
    except OutOfTime:
        came = f"it was stopped after {seconds:g} s"
    finally:
        done = True
        timer.cancel()
    return fail(call_text(fn, args, kwargs), expected=f"an answer within {seconds:g} s", came=came, look=look)
