"""Watchers of Python's waits for communication: the diagnosis of a deadlock, `measure.timeline`, or both.

They share one cover of `torch.distributed.Work.wait`. Of two covers, each of which puts back the function that it
found, one would stay for ever when the first to come is the first to leave.
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
    """Let every `work.wait()` of this process happen inside `around(work)` from now on."""
    _watchers.append(around)
    setattr(dist.Work, "wait", _watched)  # noqa: B010 (a C++ class; an assignment would not type-check)


def unwatch(around: Around) -> None:
    """End that; when the last watcher leaves, torch.distributed is as it came.

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
