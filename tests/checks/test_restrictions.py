"""What an answer calculates with is counted, in every way of writing it down."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from course_kit.checks.failed import CheckFailed
from course_kit.checks.restrictions import Arithmetic, called_by, without_torch

A = torch.arange(12, dtype=torch.float16).view(3, 4)


@pytest.mark.parametrize(
    ("fn", "flops"),
    [
        (lambda a: a + a, 12),
        (lambda a: a[:, 0] * a[:, 1] - a[:, 2], 6),
        (lambda a: a.add_(1).sub_(a).mul_(2), 36),
        (lambda a: 1 - a, 12),
        (lambda a: torch.add(a, a, alpha=3), 24),
        (lambda a: a / 2, 12),
        (lambda a: a * 0.5 + 1.5, 24),
        (lambda a: [x * y for x, y in zip(a.T, a.T, strict=True)], 12),
        (lambda a: torch.where(a.abs() > 3, -a, torch.zeros_like(a)), 0),
        (lambda a: [column.clone() for column in a.unbind(1)], 0),
        (lambda a: torch.arange(5) + 1, 0),
        (lambda a: a.float(), "wider"),
        (lambda a: a + torch.zeros(3, 4), "wider"),
        (lambda a: a.double(), "wider"),
        (lambda a: a.sum(), "sum"),
        (lambda a: a @ a.T, "mm"),
        (lambda a: a[0, 0].item(), "item"),
        (lambda a: float(a[0, 0]), "item"),
        (lambda a: torch.addcmul(a, a, a), "addcmul"),
        (lambda a: a.cumsum(0), "cumsum"),
    ],
)
def test_operations_are_counted_and_what_is_wider_or_hides_its_arithmetic_is_named(
    fn: Callable[[Tensor], object], flops: int | str
) -> None:
    """Counted by the numbers that they make."""
    with Arithmetic() as seen:
        fn(A.clone())
    if flops == "wider":
        assert seen.dtypes - {torch.float16}
    elif isinstance(flops, str):
        assert flops in seen.others
    else:
        assert (seen.flops, dict(seen.others), seen.dtypes) == (flops, {}, {torch.float16})


def model(width: int) -> int:
    return torch.nn.Linear(width, width).weight.numel()


another_name = model


def hides_its_try(width: int) -> int:
    try:
        return torch.ones(width, width).numel()
    except AssertionError:
        return width * width


@pytest.mark.parametrize(
    ("account", "words"),
    [
        (lambda width: torch.ones(width, width).numel(), "an account on paper"),
        (lambda width: torch.empty(width, width, device="meta").numel(), "an account on paper"),
        (lambda width: model(width), "an account on paper"),
        (lambda width: globals()["mo" + "del"](width), "an account on paper"),
        (lambda width: another_name(width), "an account on paper"),
        (hides_its_try, "torch's ones"),
    ],
)
def test_an_account_that_builds_fails_and_arithmetic_passes(account: Callable[[int], int], words: str) -> None:
    with pytest.raises(CheckFailed, match=words):
        without_torch(account, ["model"])(4)
    assert account(4) == 16  # what was out of reach is back
    assert without_torch(lambda width: width**2, ["model"])(4) == 16


def _last(n: int) -> int:
    return n


class _Helper:
    def twice(self, n: int) -> int:
        return 2 * _last(n)


def _answer(n: int) -> int:
    return (lambda m: _Helper().twice(m))(n) + isinstance(n, torch.Tensor)


def test_an_answers_helpers_are_found_through_classes_and_inner_functions() -> None:
    """And what other modules define is not the answer's."""
    assert called_by(_answer) == [_answer, _Helper, _last] and called_by(_last) == [_last]
