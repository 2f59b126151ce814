"""Which habits a lab's checks have: each is seen where it is, and is missing where it is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from course_kit.checks import habits

from .habits import HABITS, Met, signs


def leaf(seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


def with_gradient() -> Tensor:
    x = leaf()
    x.grad = torch.ones_like(x)
    return x


def missing(*calls: dict[str, Any], name: str = "answer", life: str = "one") -> set[str]:
    met = Met()
    for given in calls:
        met.add(name, signs(name, given, life, sys._getframe()))
    return {each.removeprefix(f"{name}: ") for each in met.missing()}


ALL = set(HABITS) - {"upstream"}


def test_one_kind_call_has_none_of_them() -> None:
    assert missing({"x": leaf()}) == ALL
    assert missing({"n": 3, "words": ["a"]}) == set(), "there are no tensors to be unkind with"
    assert missing({"tokens": torch.tensor([1, 2])}) == {"again"}


@pytest.mark.parametrize(
    ("habit", "calls"),
    [
        ("again", [{"x": leaf(1)}, {"x": leaf(2)}]),
        ("grad", [{"x": with_gradient()}]),
        ("grad", [{"parts": [{"w": with_gradient()}]}]),
        ("across", [{"x": habits.across(leaf())}]),
        ("formats", [{"x": leaf().expand(2, 2, 3)}, {"x": leaf(0, torch.float32)}]),
        ("large", [{"x": torch.tensor([2000.0, -2000.0])}]),
    ],
)
def test_each_is_seen(habit: str, calls: list[dict[str, Any]]) -> None:
    assert habit not in missing(*calls)


def test_the_same_numbers_or_another_process_are_no_second_call() -> None:
    assert "again" in missing({"x": leaf(1)}, {"x": leaf(1)})
    met = Met()
    for life, seed in (("one", 1), ("two", 2)):
        met.add("answer", signs("answer", {"x": leaf(seed)}, life, None))
    assert "answer: again" in met.missing()


def test_unfilled_memory_is_seen_while_it_lasts() -> None:
    with habits.Unfilled():
        assert "unfilled" not in missing({"x": leaf()})
    assert "unfilled" in missing({"x": leaf()})


@pytest.mark.parametrize(("run", "seen"), [(habits.backward, True), (lambda result: result.backward(), False)])
def test_who_runs_the_backward_pass(run: Callable[[Tensor], None], seen: bool) -> None:
    found: list[bool] = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            found.append(signs("Watched.backward", {"grad": grad}, "one", sys._getframe())["upstream"])
            return grad.expand(2, 3)

    run(Watched.apply(leaf()))
    assert found == [seen]
