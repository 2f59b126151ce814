"""Bytes outside of PyTorch: what an answer hides in NumPy and bytes objects counts, what measures it does not."""

from __future__ import annotations

import io
import tracemalloc

import pytest
import torch

from course_lib import measure
from course_lib.checks.untracked_memory import outside_torch
from course_lib.units import Bytes

X = torch.ones(256, 256)  # large beside a table of the interpreter that may grow meanwhile


def saved_into_memory(x: torch.Tensor) -> io.BytesIO:
    """The tensor as `torch.save` writes it."""
    file = io.BytesIO()
    torch.save(x, file)
    return file


@pytest.mark.parametrize(
    "hide",
    [
        lambda x: x.numpy().copy(),
        lambda x: x.numpy().tobytes(),
        lambda x: bytearray(x.numpy()),
        lambda x: x.half().numpy().astype("float32"),
        saved_into_memory,
    ],
    ids=["an array", "bytes", "a bytearray", "a conversion", "a file in memory"],
)
def test_a_copy_outside_counts_as_long_as_it_is_held(hide):
    with outside_torch() as outside:
        assert outside() == 0
        kept = hide(X)
        assert isinstance(outside(), Bytes) and X.nbytes <= outside() < 1.2 * X.nbytes
        del kept
        assert outside() == 0


def test_numbers_in_a_list_count():
    with outside_torch() as outside:
        kept = X.flatten().tolist()
        assert outside() >= 8 * len(kept)


def test_tensors_and_the_record_of_them_do_not_count():
    with outside_torch() as outside, measure.memory(inputs=X) as record:
        leaf = X.clone().requires_grad_()
        kept = [leaf]
        for _ in range(100):
            kept.append(kept[-1].sin())
        kept[-1].sum().backward()
        named = dict.fromkeys(map(str, range(80)), 0.0)
        assert record.now.total > 100 * X.nbytes and len(named) == 80
        assert outside() == 0


def test_what_pytorch_remembers_for_itself_does_not_count():
    with outside_torch() as outside:
        names: dict[str, bytes] = {}
        exec(compile("table = bytes(2**16)", "/lib/site-packages/torch/_library/registry.py", "exec"), names)
        assert outside() == 0
        exec(compile("kept = bytes(2**16)", "/tmp/ipykernel_1/7.py", "exec"), names)
        assert outside() >= 2**16


def test_whoever_traces_already_goes_on_tracing():
    tracemalloc.start()
    try:
        earlier = bytes(2**16)
        with outside_torch() as outside:
            assert outside() == 0
        assert tracemalloc.is_tracing() and len(earlier) == 2**16
    finally:
        tracemalloc.stop()
    with outside_torch():
        assert tracemalloc.is_tracing()
    assert not tracemalloc.is_tracing()
