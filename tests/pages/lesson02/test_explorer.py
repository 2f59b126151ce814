"""The memory bar's account, its limits and its picture, all without a browser."""

from __future__ import annotations

import pytest

from course_lib import predict
from course_lib.model import zoo
from course_lib.predict import Setup
from course_pages.lesson02.explorer import WIDTHS, MemoryBarExplorer, shape, steps
from course_pages.lesson02.moments import TERMS, sums, that_may_be_largest


def test_the_account_is_the_librarys():
    explorer = MemoryBarExplorer(
        layers=12, width=768, batch=4, seq=512,
        precision="bf16", optimizer="momentum", attention="fused", recompute="full",
    )  # fmt: skip
    setup = Setup(shape(12, 768, 512, "fused"), 4, 512, precision="bf16", optimizer="momentum", recompute="full")
    assert explorer.account == predict.peak(setup) and explorer.account.phase == "backward"
    explorer.recompute = "none"
    assert explorer.account == predict.peak(setup.with_(recompute="none"))


def test_a_sum_that_does_not_exist_is_noticed():
    with pytest.raises(ArithmeticError, match="no sum of these terms"):
        sums(lambda setup: {"odd": [setup.gpt.layers**2]}, steps())


def test_a_moment_that_may_be_largest_is_kept():
    """Of three moments, the second never exceeds the first, and the third does for many layers."""
    nothing = [0] * len(TERMS)
    flat, lower, steep = (list(nothing) for _ in range(3))
    flat[0], lower[0], steep[TERMS.index((1, 0, 0, 0, 0))] = 100, 99, 1
    found = {"flat": [flat], "lower": [lower], "steep": [steep]}
    assert that_may_be_largest(found) == [("flat", [flat]), ("steep", [steep])]


def test_gpt2_xl_has_its_published_size():
    assert predict.parameters(shape(48, 1600, 1024, "explicit")) == predict.parameters(zoo.GPT2_XL) == 1_557_611_200


def test_every_choice_makes_a_model():
    for width in WIDTHS:
        assert shape(1, width, 128, "fused").head_width in (64, 128)
