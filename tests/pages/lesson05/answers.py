"""Right and wrong answers to lesson 05's turns."""

from __future__ import annotations

import math
from itertools import accumulate as running

import torch

from course_pages.lesson05 import turns
from tests.pages.answers import Answers


def pieces_by_autograd(model, pieces):
    parameters = list(model.parameters())
    for piece in pieces:
        found = torch.autograd.grad(model(*piece), parameters)
        for parameter, gradient in zip(parameters, found):
            old = 0 if parameter.grad is None else parameter.grad
            parameter.grad = old + gradient / len(pieces)


def into_zeros_and_divided_at_the_end(model, pieces):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for piece in pieces:
        model(*piece).backward()
    for parameter in model.parameters():
        parameter.grad /= len(pieces)


def in_sums_of_its_own(model, pieces):
    parameters = list(model.parameters())
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    for piece in pieces:
        for each, gradient in zip(sums, torch.autograd.grad(model(*piece) / len(pieces), parameters)):
            each += gradient
    for parameter, each in zip(parameters, sums):
        parameter.grad = each


def keeps_every_graph(model, pieces):
    losses = []
    for piece in pieces:
        losses.append(model(*piece) / len(pieces))
        losses[-1].backward(retain_graph=True)


def forgot_to_divide(model, pieces):
    for piece in pieces:
        model(*piece).backward()


def one_backward_at_the_end(model, pieces):
    torch.stack([model(*piece) for piece in pieces]).mean().backward()


def only_the_last(model, pieces):
    for piece in pieces:
        model.zero_grad()
        model(*piece).backward()


def an_eighth_always(model, pieces):
    for piece in pieces:
        (model(*piece) / 8).backward()


def weights_as_a_tensor(tokens):
    return torch.tensor(tokens, dtype=torch.float64) / sum(tokens)


def weights_as_a_tuple(tokens):
    return tuple(count / sum(tokens) for count in tokens)


def mean_of_means(tokens):
    return [1 / len(tokens)] * len(tokens)


def of_the_longest(tokens):
    return [count / max(tokens) for count in tokens]


def the_other_way_round(tokens):
    inverse = [1 / count if count else 0 for count in tokens]
    return [each / sum(inverse) for each in inverse]


def nothing_for_the_empty(tokens):
    return [count / sum(tokens) for count in tokens if count]


def one_more_for_each(tokens):
    return [(count + 1) / (sum(tokens) + len(tokens)) for count in tokens]


def a_tenth_for_the_empty(tokens):
    rest = 1 - 0.1 * tokens.count(0)
    return [rest * count / sum(tokens) if count else 0.1 for count in tokens]


def louder_by_running_products(lengths):
    *_, last = running([1.0, *(max(1.0, length) for length in lengths[:-1])], lambda a, b: a * b)
    return last


def every_cut(lengths):
    return math.prod(max(1, length) for length in lengths)


def all_but_the_first(lengths):
    return math.prod(max(1, length) for length in lengths[1:])


def stretched_too(lengths):
    return math.prod(lengths[:-1])


def all_but_the_longest(lengths):
    return math.prod(max(1, length) for length in lengths) / max(1, *lengths, 1)


def a_power_of_two(lengths):
    return 2 ** (len(lengths) - 2)


def table_by_einsum(rows, columns):
    return torch.einsum("r,c->rc", rows, columns) / columns.mean()


def table_in_64_bits(rows, columns):
    rows, columns = rows.double().numpy(), columns.double().numpy()
    return rows[:, None] * columns / rows.mean()


def not_divided(rows, columns):
    return rows[:, None] * columns


def divided_by_the_sum(rows, columns):
    return torch.outer(rows, columns) / rows.sum()


def turned(rows, columns):
    return torch.outer(columns, rows) / rows.mean()


def added(rows, columns):
    return rows[:, None] + columns - rows.mean()


ANSWERS = {
    turns.check_pieces: Answers(
        right=[pieces_by_autograd, into_zeros_and_divided_at_the_end, in_sums_of_its_own],
        wrong={
            forgot_to_divide: "the gradient should be as long as that of one, but is 2 times",
            one_backward_at_the_end: "the one before should have gone backward",
            keeps_every_graph: "and left no activations",
            only_the_last: "2 pieces: the gradient",
            an_eighth_always: "but is 0.25 times",
        },
    ),
    turns.check_weights: Answers(
        right=[weights_as_a_tensor, weights_as_a_tuple],
        wrong={
            mean_of_means: "pieces of [6, 2] tokens: a token of one piece speaks 3 times as loud",
            of_the_longest: "the factors give 1.33 together",
            the_other_way_round: "speaks 9 times as loud",
            one_more_for_each: "speaks 1.29 times as loud",
            a_tenth_for_the_empty: "pieces of [6, 0, 2] tokens: no token, and yet a factor",
            nothing_for_the_empty: "a factor for each piece, and 2 came",
        },
    ),
    turns.check_louder: Answers(
        right=[louder_by_running_products],
        wrong={
            every_cut: "you say that the last counts 16 times as much as the first",
            all_but_the_first: "it counts less",
            stretched_too: "lengths [0.5, 0.9, 0.8] before the cuts",
            all_but_the_longest: "lengths [4, 3, 2] before the cuts",
            a_power_of_two: "lengths [0.5, 0.9, 0.8] before the cuts",
        },
    ),
    turns.check_table: Answers(
        right=[table_by_einsum, table_in_64_bits],
        wrong={
            not_divided: "its row means should be those that it was made from",
            divided_by_the_sum: "its row means should be those that it was made from",
            turned: "a table of 3 × 2: yours is 2 × 3",
            added: "its rows should be multiples of each other",
        },
    ),
}
