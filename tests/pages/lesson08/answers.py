"""Answers to the turns of lesson 08."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib.collectives.operators import all_gather, all_reduce, own_part, reduce_scatter
from course_pages.lesson08 import turns
from course_pages.lesson08.runs import attention
from tests.pages.answers import Answers


def mix_of_own_heads(x, q, k, v, heads):
    q, k, v = ((x @ own_part(each, 1)).unflatten(-1, (heads, -1)).transpose(0, 1) for each in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)


def scattered_and_gathered(x, q, k, v, out, heads):
    summand = mix_of_own_heads(x, q, k, v, heads // dist.get_world_size()) @ own_part(out, 0)
    return all_gather(reduce_scatter(summand, 0), 0)


def out_by_columns(x, q, k, v, out, heads):
    mix = all_gather(mix_of_own_heads(x, q, k, v, heads // dist.get_world_size()), 1)
    return all_gather(mix @ own_part(out, 1), 1)


def two_heads_whatever_comes(x, q, k, v, out, heads):
    q, k, v = (own_part(each, 1) for each in (q, k, v))
    return all_reduce(attention(x, q, k, v, own_part(out, 0), 2))


def all_on_each(x, q, k, v, out, heads):
    return attention(x, q, k, v, out, heads)


def without_the_sum(x, q, k, v, out, heads):
    q, k, v = (own_part(each, 1) for each in (q, k, v))
    return attention(x, q, k, v, own_part(out, 0), heads // dist.get_world_size())


def by_gathering(grad):
    return torch.stack(all_gather(grad[None], 0).unbind(0)).sum(0)


def in_place(grad):
    dist.all_reduce(grad)
    return grad


def on_rank_0_alone(grad):
    whole = grad.clone()
    dist.reduce(whole, 0)
    return whole


def mean_of_all(grad):
    return all_reduce(grad) / dist.get_world_size()


def identity(grad):
    return grad


def in_fractions(stream_bytes, t):
    return 10 * stream_bytes * (1 - 1 / t)


def without_the_second_gather(stream_bytes, t):
    return 8 * stream_bytes * (t - 1) // t


def three_gathers_too_many(stream_bytes, t):
    return 12 * stream_bytes * (t - 1) // t


def without_the_share(stream_bytes, t):
    return 10 * stream_bytes


def for_four_ranks(stream_bytes, t):
    return 245_760 if t == 4 else 163_840


def with_a_running_maximum(mix, log_sum, scores, values):
    largest = torch.maximum(log_sum, scores.max(-1).values)
    old, new = (log_sum - largest).exp(), (scores - largest[:, None]).exp()
    total = old + new.sum(-1)
    return (old[:, None] * mix + new @ values) / total[:, None], largest + total.log()


def naive(mix, log_sum, scores, values):
    total = log_sum.exp() + scores.exp().sum(-1)
    return (log_sum.exp()[:, None] * mix + scores.exp() @ values) / total[:, None], total.log()


def never_rescaled(mix, log_sum, scores, values):
    grown = torch.logaddexp(log_sum, scores.logsumexp(-1))
    return mix + (scores - grown[:, None]).exp() @ values, grown


def the_maximum_for_the_sum(mix, log_sum, scores, values):
    largest = torch.maximum(log_sum, scores.max(-1).values)
    return (log_sum - largest).exp()[:, None] * mix + (scores - largest[:, None]).exp() @ values, largest


def the_old_sum(mix, log_sum, scores, values):
    grown = torch.logaddexp(log_sum, scores.logsumexp(-1))
    return (log_sum - grown).exp()[:, None] * mix + (scores - grown[:, None]).exp() @ values, log_sum


def into_one_buffer(model, cut):
    grads = [parameter.grad for name, parameter in model.named_parameters() if name not in cut]
    buffer, at = torch.empty(sum(grad.numel() for grad in grads), dtype=grads[0].dtype), 0
    for grad in grads:
        buffer[at : at + grad.numel()] = grad.flatten()
        at += grad.numel()
    dist.all_reduce(buffer)
    for grad in reversed(grads):
        at -= grad.numel()
        grad.copy_(buffer[at : at + grad.numel()].view_as(grad))


def one_by_one(model, cut):
    for name, parameter in model.named_parameters():
        if name not in cut:
            dist.all_reduce(parameter.grad)


def means(model, cut):
    into_one_buffer(model, cut)
    for name, parameter in model.named_parameters():
        if name not in cut:
            parameter.grad /= dist.get_world_size()


def everything(model, cut):
    into_one_buffer(model, {})


def norms_alone(model, cut):
    into_one_buffer(model, {name for name, _ in model.named_parameters() if "norm" not in name})


ANSWERS = {
    turns.check_attention: Answers(
        right=[scattered_and_gathered],
        wrong={
            out_by_columns: "gathers",
            two_heads_whatever_comes: "8 heads on 2 ranks",
            all_on_each: "part of all operations",
            without_the_sum: "all heads",
        },
    ),
    turns.check_f: Answers(
        right=[by_gathering],
        wrong={
            in_place: "stay as it was",
            on_rank_0_alone: "still off",
            mean_of_all: "still off",
            identity: "still off",
        },
    ),
    turns.check_bytes: Answers(
        right=[in_fractions],
        wrong={
            without_the_second_gather: "too few",
            three_gathers_too_many: "too many",
            without_the_share: "too many",
            for_four_ranks: "too many",
        },
    ),
    turns.check_softmax: Answers(
        right=[with_a_running_maximum],
        wrong={
            naive: "off by",
            never_rescaled: "off by",
            the_maximum_for_the_sum: "off by",
            the_old_sum: "off by",
        },
    ),
    turns.check_whole: Answers(
        right=[into_one_buffer],
        wrong={
            one_by_one: "one message",
            means: "the sum over the ranks",
            everything: "since it is cut",
            norms_alone: "down.bias",
        },
    ),
}
