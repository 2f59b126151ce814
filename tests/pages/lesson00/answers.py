"""Answers to the turns of lesson 00."""

from __future__ import annotations

import math
from collections import Counter

import torch
import torch.distributed as dist

from course_pages.lesson00 import turns
from tests.pages.answers import Answers


def by_matrices(B, S, D):
    products = 3 * [(B * S, D, D)] + [(B * S, D, D), (B * S, D, 4 * D), (B * S, 4 * D, D)] + 2 * [(B * S, D, S)]
    return sum(2 * m * k * n for m, k, n in products)


def without_attention(B, S, D):
    return 2 * B * S * 12 * D**2


def one_operation_a_triple(B, S, D):
    return B * S * 12 * D**2 + 2 * B * S * S * D


def scores_alone(B, S, D):
    return 2 * B * S * 12 * D**2 + 2 * B * S * S * D


def glued(model):
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    dist.all_reduce(gradients)
    for parameter, part in zip(
        model.parameters(), (gradients / dist.get_world_size()).split([p.numel() for p in model.parameters()])
    ):
        parameter.grad = part.view_as(parameter)


def gathered(model):
    for parameter in model.parameters():
        each = [torch.empty_like(parameter.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(each, parameter.grad)
        parameter.grad = sum(each) / dist.get_world_size()


def the_sum(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def the_weights(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


def a_quarter(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= 4


def divided_first(loss):
    part = loss / dist.get_world_size()
    dist.all_reduce(part)
    if dist.get_rank() == 0:
        return float(part)
    return None


def everywhere(loss):
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def a_tensor(loss):
    dist.all_reduce(loss)
    return loss / dist.get_world_size() if dist.get_rank() == 0 else None


def one_alone(loss):
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        return loss.item() / dist.get_world_size()
    return None


def in_whole_numbers(loss):
    dist.all_reduce(loss)
    return loss.item() // dist.get_world_size() if dist.get_rank() == 0 else None


def counted(data):
    return sum(n / len(data) * math.log(len(data) / n) for n in Counter(data).values())


def in_32_bits(data):
    shares = torch.bincount(torch.tensor(list(data))) / len(data)
    shares = shares[shares > 0]
    return -(shares * shares.log()).sum().item()


def in_bits(data):
    return sum(n / len(data) * math.log2(len(data) / n) for n in Counter(data).values())


def unweighted(data):
    return sum(math.log(len(data) / n) for n in Counter(data).values()) / len(Counter(data))


def as_if_equally_likely(data):
    return math.log(len(set(data)))


def letters_of_the_alphabet(data):
    shares = [data.count(letter) / len(data) for letter in b"abcdefghijklmnopqrstuvwxyz"]
    return -sum(q * math.log(q) for q in shares if q)


def in_lower_case(data):
    return counted(data.lower())


ANSWERS = {
    turns.check_operations: Answers(
        right=[by_matrices],
        wrong={
            without_attention: "times what was counted",
            one_operation_a_triple: "0.5 times",
            scores_alone: "times what",
        },
    ),
    turns.check_average: Answers(
        right=[glued],
        wrong={
            the_sum: "in weight and bias",
            the_weights: "in weight and bias",
            a_quarter: "2 ranks bring",
            gathered: "rank 0 sends 96",
        },
    ),
    turns.check_mean: Answers(
        right=[divided_first],
        wrong={
            everywhere: "should return None",
            a_tensor: "a float",
            one_alone: "rank 0 waits in all_reduce",
            in_whole_numbers: "rank 0 returns 2.0",
        },
    ),
    turns.check_letters: Answers(
        right=[counted, in_32_bits],
        wrong={
            in_bits: "mean surprise",
            unweighted: "b'aaab'",
            as_if_equally_likely: "b'aaab'",
            letters_of_the_alphabet: "b'A a.A a.'",
            in_lower_case: "b'A a.A a.'",
        },
    ),
}
