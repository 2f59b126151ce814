"""Who wants to know when Python waits for a communication: the diagnosis of a deadlock, `measure.timeline`, both.

They share one cover of `torch.distributed.Work.wait`. Two covers, each of which remembers what it found there, end with
one that nobody takes off any more when the first to come is the first to leave.

Lesson 07 uses this module without opening it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch.distributed as dist

Around = Callable[[dist.Work], AbstractContextManager[None]]
_original = dist.Work.wait
_watchers: list[Around] = []


def watch(around: Around) -> None:
    """From now on every `work.wait()` of this process happens inside `around(work)`."""
    _watchers.append(around)
    setattr(dist.Work, "wait", _watched)  # noqa: B010 (a C++ class; an assignment would not type-check)


def unwatch(around: Around) -> None:
    """No longer; when the last one leaves, torch.distributed is as it came.

    Raises:
        ValueError: this one does not watch.
    """
    _watchers.remove(around)
    if not _watchers:
        setattr(dist.Work, "wait", _original)  # noqa: B010


@functools.wraps(_original)
def _watched(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
    with ExitStack() as stack:
        for around in tuple(_watchers):
            stack.enter_context(around(work))
        return _original(work, *args, **kwargs)
