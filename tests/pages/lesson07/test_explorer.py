"""The bucket explorer's numbers, its limits and its picture, all without a browser."""

from __future__ import annotations

import pytest

from course_lib import predict
from course_lib.predict import Setup
from course_pages.lesson07.explorer import FLOPS_PER_S, NETWORKS, BucketExplorer


def test_the_explorer_shows_what_the_library_predicts() -> None:
    explorer = BucketExplorer(
        network="GPT-2 small", gb_per_s=12.5, bucket=20, world=4, tokens=10, alpha_us=3, overlapped=False
    )
    ready = predict.gradients_ready(Setup(NETWORKS["GPT-2 small"], 1, 1024, precision="mixed"), FLOPS_PER_S)
    assert explorer.result() == predict.overlap(ready, 2**20, 16, explorer.link, overlapped=False)
    assert (explorer.link.alpha, explorer.link.bytes_per_s) == (pytest.approx(3e-6), pytest.approx(12.5e9))
    assert len(explorer.result(33).departures) == 1


def test_a_bucket_may_be_too_small_and_too_large() -> None:
    """GPT-2 XL on 8 ranks with 50 GB/s: 1.6 billion gradients of 2 bytes, 1.75 times 3.1 GB over the link."""
    explorer = BucketExplorer()
    small, best, large = (explorer.result(bucket) for bucket in (10, 25, 33))
    assert small.end_s > 1.3 * best.end_s < large.end_s
    assert large.waiting_s == pytest.approx(1.75 * 2 * 1_557_611_200 / 50e9 + 14 * 10e-6)
    assert all(each.start_s >= large.backward_s for each in large.departures)
    assert small.messages == 14 * len(small.departures)
