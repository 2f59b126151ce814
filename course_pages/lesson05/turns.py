"""Checks of lesson 05's turns, and the exercises' answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_kit.notebook.your_turn import Function
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.text import Batch
from course_lib.train.accumulate import micro_batches

SMALL = GPTConfig(layers=2, width=64, heads=4, vocab_size=256, context=64)
WHOLE: Batch = text.stories(seed=0).batch(seed=0, step=0, rank=0, batch_size=32, context=64)


def check_pieces(function: Function) -> None:
    """Two, eight and one pieces: the gradient of the whole, up to rounding, and one piece's activations at a time."""
    model = GPT(SMALL, seed=0)
    model(*WHOLE).backward()
    due = _gradient(model)
    for pieces in (micro_batches(WHOLE, 16), micro_batches(WHOLE, 4), [WHOLE]):
        model = GPT(SMALL, seed=0)
        held, m = _held_at_each_forward(model, function, pieces), len(pieces)
        ours = _gradient(model)
        assert ours.shape == due.shape, f"{m} pieces: every parameter should have a gradient in `.grad` afterwards"
        long = (ours.norm() / due.norm()).item()
        assert abs(long - 1) < 0.01, (
            f"{m} pieces: the gradient should be as long as that of one, but is {long:.3g} times"
        )
        by = ((ours - due).norm() / due.norm()).item()
        rounding = 2047 * torch.finfo(torch.float32).eps  # 2,048 tokens are added up
        assert by < rounding, f"{m} pieces: the gradient is another one, off by {by:.1%}"
        assert len(held) >= m and not any(held), (
            f"{m} pieces: when one begins, the one before should have gone backward and left no activations"
        )


def _held_at_each_forward(model: nn.Module, function: Function, pieces: Sequence[Batch]) -> list[int]:
    """Run the function, and count the tensors that autograd keeps whenever the model begins a forward pass."""
    held, kept = list[int](), WeakSet[Callable[[], Tensor]]()

    def pack(tensor: Tensor) -> Callable[[], Tensor]:
        detached = tensor.detach()
        kept.add(back := lambda: detached)  # lives as long as the graph
        return back

    model.register_forward_pre_hook(lambda *_: held.append(len(kept)))
    with saved_tensors_hooks(pack, lambda back: back()):
        function(model, pieces)
    return held


def _gradient(model: nn.Module) -> Tensor:
    """All gradients, end to end."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None] or [torch.zeros(1)])


def check_weights(function: Function) -> None:
    """Ragged, equal, empty and single pieces: token for token, each weighs the same."""
    for tokens in ([6, 2], [5, 5, 5, 5], [6, 0, 2], [2, 2, 60], [7]):
        found = [float(weight) for weight in function(list(tokens))]
        what = f"pieces of {tokens} tokens"
        assert len(found) == len(tokens), f"{what}: there should be a factor for each piece, and {len(found)} came"
        together = sum(found)
        assert math.isclose(together, 1, rel_tol=1e-6), f"{what}: the factors give {together:.3g} together, not 1"
        spread = [weight / count for weight, count in zip(found, tokens) if count]
        assert all(count or not weight for weight, count in zip(found, tokens)), f"{what}: no token, and yet a factor"
        assert max(spread) < (1 + 1e-6) * min(spread), (
            f"{what}: a token of one piece speaks {max(spread) / min(spread):.3g} times as loud as one of another"
        )


def loudness(lengths: Sequence[float]) -> list[float]:
    """Weights of the pieces in a sum that is clipped to 1 behind every piece; `lengths` are those before clipping."""
    shares = list[float]()
    for length in lengths:
        shares = [share / max(1, length) for share in [*shares, 1.0]]
    return shares


def check_louder(function: Function) -> None:
    """Sums that grow, that are never clipped, that are clipped now and then, that shrink, and a single piece."""
    for lengths in ([1, 2, 2, 2, 2], [0.5, 0.9, 0.8], [3, 2, 4], [2, 0.5, 5], [4, 3, 2], [4]):
        found, due = float(function(list(lengths))), loudness(lengths)[-1] / loudness(lengths)[0]
        assert math.isclose(found, due, rel_tol=1e-6), (
            f"lengths {lengths} before the cuts: you say that the last counts {found:.3g} times as much as the first, "
            f"and in a sum that was really cut like this it counts {'less' if due < found else 'more'}"
        )


def check_table(function: Function) -> None:
    """A table that is a product, one that is not, and one whose transpose has another shape."""
    product = torch.outer(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([3.0, 1.0]))
    for square in (product, torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 2.0]]), 1e-6 * product.T):
        rows, columns = square.mean(1), square.mean(0)
        found = torch.as_tensor(function(rows.clone(), columns.clone()), dtype=torch.float)
        what = f"a table of {square.shape[0]} × {square.shape[1]}"
        assert found.shape == square.shape, f"{what}: yours is {' × '.join(map(str, found.shape)) or 'a number'}"
        for name, mean, dim in (("row", rows, 1), ("column", columns, 0)):
            assert torch.allclose(found.mean(dim), mean, rtol=1e-4, atol=0), (
                f"{what}: its {name} means should be those that it was made from, {_short(mean)}, and are "
                f"{_short(found.mean(dim))}"
            )
        assert torch.linalg.matrix_rank(found / found.max()) == 1, f"{what}: its rows should be multiples of each other"


def _short(numbers: Sequence[float] | Tensor) -> str:
    return ", ".join(f"{float(number):.3g}" for number in numbers)


def exercise_1(lengths: Sequence[int]) -> float:
    """The factor by which a mean of means overweights a token of the short half, with rows sorted and cut in two."""
    short = sorted(lengths)[: len(lengths) // 2]
    return sum(lengths) / (2 * sum(short))


_SHARES = loudness([1.0] + [2.0] * 9)  # a clipped sum is 1 long, and the next piece brings another 1
EXERCISES = len(range(0, 512, 6)), _SHARES[5] / _SHARES[0]
"""Answers to exercises 2 and 3: pieces; the sixth of ten equal gradients against the first, if sums are clipped."""
