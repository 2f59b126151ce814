"""What an answer holds where `measure.memory` does not look: in arrays of NumPy, bytes objects, long lists.

A segment that copies its activations into bytes objects saves nothing, and says that it holds nothing. Python and
NumPy tell `tracemalloc` of every block that they take, and PyTorch does not. So the two counts add up.

Lab 03 opens this module.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from course_lib.units import Bytes

BLOCK = 4096
"""Bytes. What is smaller is bookkeeping: a frame, a node of the graph, a dict of a hundred entries."""

NOT_THE_ANSWERS = [
    tracemalloc.Filter(False, pattern)
    for pattern in ("*/course_lib/measure/*", "*\\course_lib\\measure\\*", "<frozen *")
]
"""Blocks that an open record takes, and those of an import."""


@contextmanager
def outside_torch() -> Iterator[Callable[[], Bytes]]:
    """Counts the bytes outside of PyTorch's tensors; open it before `measure.memory`.

        with outside_torch() as outside, measure.memory(model) as record:
            answer()
            held = record.now.total + outside()

    It sees blocks of 4 KiB or more that Python or NumPy took inside the `with` block and still hold. It does not see
    files and shared memory, nor a tensor cut into smaller pieces than that. An array of NumPy under a tensor
    (`torch.from_numpy`) counts in both places.

    Yields:
        A function that returns how many bytes are held at this moment.
    """
    ours = not tracemalloc.is_tracing()
    if ours:
        tracemalloc.start()
    before = _large_blocks()
    try:
        yield lambda: Bytes(max(0, _large_blocks() - before))
    finally:
        if ours:
            tracemalloc.stop()


def _large_blocks() -> int:
    traces = tracemalloc.take_snapshot().filter_traces(NOT_THE_ANSWERS).traces
    return sum(trace.size for trace in traces if trace.size >= BLOCK)
