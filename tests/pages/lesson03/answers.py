"""Answers to the turns of lesson 03."""

from __future__ import annotations

import torch

from course_lib.predict import Chain
from course_pages.lesson03 import turns
from tests.pages.answers import Answers


def by_autograd_backward(piece, x, dice, gradient):
    leaf, outside = x.clone().detach().requires_grad_(True), torch.get_rng_state()
    torch.set_rng_state(dice)
    with torch.enable_grad():
        torch.autograd.backward(piece(leaf), gradient)
    torch.set_rng_state(outside)
    return leaf.grad


def keeps_the_dice(piece, x, dice, gradient):
    x = x.detach().requires_grad_()
    torch.set_rng_state(dice)
    with torch.enable_grad():
        piece(x).backward(gradient)
    return x.grad


def asks_for_weights(piece, x, dice, gradient):
    x = x.detach().requires_grad_()
    with torch.enable_grad(), torch.random.fork_rng([]):
        torch.set_rng_state(dice)
        result = piece(x)
    weights = list(piece.parameters())
    of_x, *of_weights = torch.autograd.grad(result, [x, *weights], gradient)
    for weight, one in zip(weights, of_weights, strict=True):
        weight.grad = one if weight.grad is None else weight.grad + one
    return of_x


def other_dice(piece, x, dice, gradient):
    x = x.detach().requires_grad_()
    with torch.enable_grad(), torch.random.fork_rng([]):
        piece(x).backward(gradient)
    return x.grad


def weights_get_nothing(piece, x, dice, gradient):
    x = x.detach().requires_grad_()
    with torch.enable_grad(), torch.random.fork_rng([]):
        torch.set_rng_state(dice)
        return torch.autograd.grad(piece(x), x, gradient)[0]


def saving_off(piece, x, dice, gradient):
    x = x.detach().requires_grad_()
    with torch.random.fork_rng([]):
        torch.set_rng_state(dice)
        piece(x).backward(gradient)
    return x.grad


def no_leaf(piece, x, dice, gradient):
    x.retain_grad()
    with torch.enable_grad(), torch.random.fork_rng([]):
        torch.set_rng_state(dice)
        piece(x).backward(gradient)
    return x.grad


def by_pieces(layers, x, k, forget):
    layers = list(layers)
    while layers:
        part, layers = layers[:k], layers[k:]
        x = forget(torch.nn.Sequential(*part), x)
    return x


def evenly(layers, x, k, forget):
    pieces = -(-len(layers) // k)
    return by_pieces(layers, x, -(-len(layers) // pieces), forget)


def late_lambda(layers, x, k, forget):
    for start in range(0, len(layers), k):
        x = forget(lambda given: turns.through(layers[start : start + k], given), x)  # noqa: B023
    return x


def without_the_rest(layers, x, k, forget):
    for start in range(0, len(layers) // k * k, k):
        x = forget(torch.nn.Sequential(*layers[start : start + k]), x)
    return x


def rest_in_plain(layers, x, k, forget):
    whole = len(layers) // k * k
    return turns.through(layers[whole:], without_the_rest(layers, x, k, forget))


def forgets_beside_the_chain(layers, x, k, forget):
    for start in range(0, len(layers), k):
        part = torch.nn.Sequential(*layers[start : start + k])
        forget(part, x)
        x = part(x)
    return x


def holds_its_input_fast(layers, x, k, forget):
    for start in range(0, len(layers), k):
        x = forget(lambda given, start=start, x=x: turns.through(layers[start : start + k], x), x)
    return x


def detached_each_time(layers, x, k, forget):
    for start in range(0, len(layers), k):
        x = forget(torch.nn.Sequential(*layers[start : start + k]), x.detach())
    return x


@torch.no_grad()
def saving_off_for_all(layers, x, k, forget):
    return by_pieces(layers, x, k, forget)


def takes_the_layers_away(layers, x, k, forget):
    while layers:
        x = forget(torch.nn.Sequential(*layers[:k]), x)
        del layers[:k]
    return x


def by_the_library(n, k, x, a):
    return Chain(n, x, a).peak(k)


def as_if_k_divides(n, k, x, a):
    return -(-n // k) * x + k * a


def last_segment_alone(n, k, x, a):
    inputs = -(-n // k)
    return inputs * x + (n - (inputs - 1) * k) * a


def not_rounded(n, k, x, a):
    return n / k * x + k * a


def a_rest_of_none(n, k, x, a):
    whole, rest = divmod(n, k)
    return max((whole + 1) * x + rest * a, whole * x + k * a)


def by_a_lambda(layers, x, run, forget):
    half = (len(layers) + 1) // 2
    first, second = layers[:half], layers[half:]
    return run(second, forget(lambda given: run(first, given), x))


def looks_outside(layers, x, run, forget):
    half = len(layers) // 2
    return run(layers[half:], forget(lambda given: run(layers[:half], x), x))


def second_half(layers, x, run, forget):
    half = len(layers) // 2
    return forget(lambda given: run(layers[half:], given), run(layers[:half], x))


def both_halves(layers, x, run, forget):
    half = len(layers) // 2
    x = forget(lambda given: run(layers[:half], given), x)
    return forget(lambda given: run(layers[half:], given), x)


def detached_first(layers, x, run, forget):
    return by_a_lambda(layers, x.detach(), run, forget)


def nothing_forgotten(layers, x, run, forget):
    half = len(layers) // 2
    return run(layers[half:], run(layers[:half], x))


ANSWERS = {
    turns.check_redo: Answers(
        right=[by_autograd_backward],
        wrong={
            keeps_the_dice: "next dice",
            asks_for_weights: "raises",
            other_dice: "gradient of x",
            weights_get_nothing: "weight's .grad",
            saving_off: "raises",
            no_leaf: "made of",
        },
    ),
    turns.check_segments: Answers(
        right=[by_pieces],
        wrong={
            evenly: "should have 5",
            late_lambda: "runs again",
            without_the_rest: "K = 5",
            rest_in_plain: "K = 5",
            forgets_beside_the_chain: "outside `forget`",
            holds_its_input_fast: "runs again",
            detached_each_time: "back to x",
            saving_off_for_all: "back to x",
            takes_the_layers_away: "should stay as it is",
        },
    ),
    turns.check_peak: Answers(
        right=[by_the_library],
        wrong={
            as_if_k_divides: "K = 3",
            last_segment_alone: "more than",
            not_rounded: "K = 3",
            a_rest_of_none: "10 layers, K = 1",
        },
    ),
    turns.check_in_halves: Answers(
        right=[by_a_lambda],
        wrong={
            looks_outside: "runs again",
            second_half: "at once",
            both_halves: "2 pieces",
            nothing_forgotten: "0 pieces",
            detached_first: "back to x",
        },
    ),
}
