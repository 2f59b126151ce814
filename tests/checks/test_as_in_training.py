"""Answers that are right once, with kind numbers: each loses when it is called as training calls it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from course_kit.checks.failed import CheckFailed
from course_kit.checks.habits import Case, across, as_in_training

WAYS = [{"seed": seed, "dtype": (torch.float64, torch.float32)[seed // 2]} for seed in range(4)]


def case(seed: int, dtype: torch.dtype, scale: float = 1.0) -> Case:
    """The sum of squares of two tables' product."""
    generator = torch.Generator().manual_seed(seed)
    x, upstream = scale * torch.randn(3, 4, generator=generator, dtype=dtype), torch.tensor(-2.0, dtype=dtype)
    return Case((x.requires_grad_(),), x.detach().square().sum(), {0: -4 * x.detach()}, upstream)


KEPT: dict[Any, Tensor] = {}  # by shape, and the last one


def squares(backward: Callable[[Tensor, Tensor], Any] = lambda x, grad: 2 * x * grad) -> Callable[[Tensor], Any]:
    """The sum of squares, with a backward of x and the gradient that comes into it."""

    class Squares(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            KEPT["last"] = x.detach()
            return x.square().sum()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return backward(ctx.saved_tensors[0], *grads)

    return Squares.apply


right = squares()
WRONG: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "state": (lambda x: right(x) * (KEPT.setdefault(x.shape, x.detach())[0, 0] / x.detach()[0, 0]), "call 2"),
    "strides": (lambda x: right(x.view(-1)), "view size is not compatible"),
    "upstream": (squares(lambda x, grad: grad.mul_(2) * x), "the gradient that comes into backward"),
    "gradients that are there": (squares(lambda x, grad: setattr(x, "grad", 2 * x * grad)), "what came in addition"),
    "memory": (lambda x: right(x) + 0 * torch.empty(1, dtype=x.dtype)[0], "memory that nobody has filled"),
    "memory, backward": (
        squares(lambda x, grad: 2 * x * grad + 0 * torch.empty_like(grad)),
        "memory that nobody has filled",
    ),
    "one slot": (squares(lambda x, grad: 2 * KEPT["last"] * grad), "call 1 in .* what came in addition"),
    "narrow": (lambda x: right(x.float()).to(x.dtype), "rounding or an epsilon"),
    "dtype": (lambda x: right(x).double(), "the dtype"),
    "a float": (lambda x: right(x).item(), "the type of what is returned"),
    "cut": (lambda x: right(x).detach(), "the thread to the leaves is cut"),
}


def test_a_right_answer_passes_and_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    as_in_training(right, case, [*WAYS, {"seed": 5, "dtype": torch.float64, "scale": 1e4}])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_one_loses_and_is_told_the_kind(what: str) -> None:
    answer, words = WRONG[what]
    with pytest.raises(CheckFailed, match=words):
        as_in_training(answer, case, WAYS)


def test_across_are_the_same_numbers_elsewhere_in_memory() -> None:
    leaf = torch.arange(6.0).view(2, 3).requires_grad_()
    laid = across(leaf)
    assert torch.equal(laid, leaf) and laid.is_leaf and laid.requires_grad and not laid.is_contiguous()
    assert across(torch.arange(4)).tolist() == [0, 1, 2, 3]
