"""What an answer holds where `measure.memory` does not look: in arrays of NumPy, bytes objects, long lists.

A segment that copies its activations into bytes objects saves nothing, and says that it holds nothing. Python and
NumPy tell `tracemalloc` of every block that they take, and PyTorch does not. So the two counts add up.

Lab 03 opens this module.
"""

from __future__ import annotations

import importlib
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch

from course_lib.units import Bytes

BLOCK = 4096
"""Bytes. What is smaller is bookkeeping: a frame, a node of the graph, a dict of a hundred entries."""

CACHES = ("*/course_lib/measure/*", "*/torch/[!s]*", "*/linecache.py", "*/weakref.py", "<frozen *")
"""Files whose blocks are nobody's tensors: a record, an import, and what PyTorch looks up once and remembers. (Its
`serialization.py` and `storage.py` count: whoever saves a tensor into memory holds it.)"""


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
    importlib.import_module("torch._dynamo")  # a mode's first operation does it: fivefold the time where all is traced
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
    large = (trace for trace in tracemalloc.take_snapshot().traces if trace.size >= BLOCK)
    return sum(trace.size for trace in large if not _is_cache(trace.traceback[0].filename.replace("\\", "/")))


def _is_cache(file: str) -> bool:
    return any(fnmatch(file, pattern) for pattern in CACHES)
