"""Checks of lesson 03's turns: a backward pass that runs again, segments, their peak, halves of halves."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from course_kit import measure
from course_kit.notebook.your_turn import Function
from course_kit.units import Bytes
from course_lib.train.recompute import recompute

ROWS, WIDTH = 64, 8
INSIDE = (8, 24, 8), (24, 8, 24)
"""Widths of layers: one saves three times its input, the other a third."""

EXERCISES = (min(range(1, 65), key=lambda k: (-(-64 // k) + 4 * k, k)),)
"""Answer to exercise 1: the smallest K with the lowest peak, of 64 layers with A = 4 X."""


def chain_of(n: int) -> list[nn.Module]:
    """Layers that differ in their weights."""
    torch.manual_seed(n)
    return [nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False)) for _ in range(n)]


def recorder() -> tuple[Function, list[tuple[Function, Tensor]]]:
    """A `forget` that runs its piece and gives a leaf, and the pieces that it was given, each with its input."""
    pieces: list[tuple[Function, Tensor]] = []

    def forget(piece: Function, given: Tensor) -> Tensor:
        pieces.append((piece, given))
        with torch.no_grad():
            result = piece(given)
        return result.requires_grad_(torch.is_grad_enabled())

    return forget, pieces


def through(layers: list[nn.Module], x: Tensor) -> Tensor:
    """The plain chain."""
    for layer in layers:
        x = layer(x)
    return x


@cache
def held_at_peak(n: int, k: int, widths: tuple[int, int, int]) -> Bytes:
    """Activations at the peak of a real step: n layers in segments of k, the last of which may be shorter.

    A layer's first product does not learn and saves nothing; ReLU and the second product share one tensor.
    """
    given, inside, _ = widths
    fixed = [nn.Linear(given, inside, bias=False).requires_grad_(False) for _ in range(n)]
    layers = nn.ModuleList(nn.Sequential(first, nn.ReLU(), nn.Linear(inside, given, bias=False)) for first in fixed)
    x = torch.randn(ROWS, given, requires_grad=True)
    with measure.memory(layers, inputs=x) as record:
        y = x.clone()
        for start in range(0, n, k):
            y = recompute(nn.Sequential(*layers[start : start + k]), y, preserve_rng=False)
        y.sum().backward()
    return Bytes(record.timeline["activations"].max())


def check_redo(function: Function) -> None:
    """Gradients of input and weight, dropout's dice inside and outside, and a graph that is left alone."""
    torch.manual_seed(1)
    piece, x = nn.Sequential(*chain_of(1), nn.Dropout(0.5)), torch.randn(4, WIDTH, requires_grad=True)
    dice, gradient = torch.get_rng_state(), torch.randn(4, WIDTH)
    weight = next(piece.parameters())
    torch.set_rng_state(dice)
    piece(x).backward(gradient)
    assert x.grad is not None and weight.grad is not None
    due, due_weight, x.grad, weight.grad = x.grad, weight.grad, None, None
    torch.randn(3)  # other draws in between
    after, made_of_x = torch.get_rng_state(), x.clone()
    with torch.no_grad():
        said = function(piece.forward, made_of_x, dice, gradient)  # the page's pieces have no .parameters()
    assert torch.is_tensor(said), f"it should return the gradient of x, but returns {said}"
    assert torch.equal(said, due), "the gradient of x is another one than without forgetting"
    same = weight.grad is not None and torch.equal(weight.grad, due_weight)
    assert same, "the weight's .grad is not what it is without forgetting"
    assert torch.equal(torch.get_rng_state(), after), "the next dice that the program throws are other ones"
    assert x.grad is None, "it goes on backward, through what x was made of; autograd will do that, once more"


def check_segments(function: Function) -> None:
    """Results, the number of segments, the way back through them, and a second run of each after the loop."""
    for n, k in ((16, 1), (16, 4), (16, 5), (6, 6), (3, 4)):
        layers, (forget, pieces), other = chain_of(n), recorder(), torch.randn(4, WIDTH)
        x = torch.randn(4, WIDTH, requires_grad=True)
        result = function(layers, x, k, forget)
        case = f"{n} layers, K = {k}"
        assert len(layers) == n, f"{case}: the list of layers should stay as it is, but {len(layers)} are left"
        assert torch.is_tensor(result), f"{case}: it should return a tensor, but returns {result}"
        assert torch.equal(result, through(layers, x)), f"{case}: the result is not that of the plain chain"
        due = -(-n // k)  # rounded up
        assert len(pieces) == due, f"{case}: there should be {due} segments, but there are {len(pieces)}"
        segments, between = [*zip(range(0, n, k), pieces, strict=True)], [*(given for _, given in pieces), result]
        assert all(each.requires_grad for each in between), f"{case}: no gradient finds its way back to x"
        assert all(each.is_leaf for each in between), f"{case}: layers also run outside `forget`"
        full = all(torch.equal(given, through(layers[:start], x)) for start, (_, given) in segments)
        assert full, f"{case}: all segments but the last should have {k} layers"
        for start, (piece, _) in segments:
            again = torch.equal(piece(other), through(layers[start : start + k], other))
            assert again, f"{case}: a segment that runs again computes something else"


def check_peak(function: Function) -> None:
    """Real steps: every K for 16 layers that save as many bytes as their input, then layers that save more or less."""
    cases = [(16, k, (8, 8, 8)) for k in range(1, 17)]
    cases += [(10, k, widths) for widths in INSIDE for k in (1, 3, 4, 7)]
    for n, k, widths in cases:
        x, a = (4 * ROWS * width for width in widths[:2])
        due, said = held_at_peak(n, k, widths), function(n, k, x, a)
        case = f"{n} layers, K = {k}, inputs of {x:,d} bytes, {a:,d} saved"
        assert said is not None, f"{case}: it should return bytes, but returns {said}"
        assert said == due, f"{case}: a real step holds {'more' if said < due else 'less'} than {said:,}"


def check_in_halves(function: Function) -> None:
    """Results, and the halves that are forgotten: of each stretch the first alone, with its layers and no others."""
    for n in (2, 5, 8):
        layers, (forget, pieces), sizes = chain_of(n), recorder(), list[int]()
        x = torch.randn(4, WIDTH, requires_grad=True)

        def run(part: list[nn.Module], given: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(len(part))
            return through(list(part), given)

        said = function(layers, x, run, forget)
        assert torch.is_tensor(said), f"{n} layers: it should return a tensor, but returns {said}"
        assert torch.equal(said, through(layers, x)), f"{n} layers: the result is not that of the plain chain"
        assert len(sizes) == 2, (
            f"{n} layers: `run` should be called once for each half, but is called {len(sizes)} times"
        )
        assert abs(sizes[0] - sizes[1]) <= 1, f"{n} layers: the two parts have {sizes[0]} and {sizes[1]} layers"
        assert len(pieces) == 1, f"{n} layers: one half should be forgotten, but {len(pieces)} pieces are"
        piece, given = pieces[0]
        first = torch.equal(given, x)
        assert first, f"{n} layers: the half that is forgotten is the one that the backward pass needs at once"
        assert given.requires_grad and said.requires_grad, f"{n} layers: no gradient finds its way back to x"
        other = torch.randn(4, WIDTH)  # a piece that reads the outer x computes something else
        due = through(layers[: sizes[0]], other)
        assert torch.equal(piece(other), due), f"{n} layers: the piece that runs again computes something else"


def mean_after_two_moves(momentum: float) -> float:
    """The running mean of a recomputed BatchNorm after one step on a batch whose mean is 10."""
    norm = nn.BatchNorm1d(1, momentum=momentum)
    recompute(norm, torch.full((8, 1), 10.0, requires_grad=True)).sum().backward()
    assert norm.running_mean is not None
    return norm.running_mean.item()
