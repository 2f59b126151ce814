"""Answers to the turns of lesson 09."""

# pyright: reportOptionalMemberAccess=false
# (A handle is None on ranks outside of the group, of which there are none here.)
from __future__ import annotations

import torch
import torch.distributed as dist

from course_pages.lesson09 import turns
from tests.pages.answers import Answers


def back_with_posted_messages(x, y):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank == last:
        torch.autograd.backward(y)
    else:
        theirs = torch.zeros(y.shape, dtype=y.dtype)
        dist.irecv(theirs, rank + 1).wait()
        torch.autograd.backward([y], [theirs])
    if rank != 0:
        dist.isend(x.grad, rank - 1).wait()


def back_from_a_number(x, y):
    rank, last, number = dist.get_rank(), dist.get_world_size() - 1, y
    if rank < last:
        dist.recv(gradient := torch.empty_like(y), src=rank + 1)
        number = (y * gradient).sum()
    number.backward()
    going, x.grad = x.grad, None
    if rank > 0:
        dist.send(going, dst=rank - 1)


def back_without_sending(x, y):
    y.sum().backward()


def back_with_ones(x, y):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank < last:
        dist.recv(torch.empty_like(y), src=rank + 1)
    y.backward(torch.ones_like(y))
    if rank > 0:
        dist.send(x.grad, dst=rank - 1)


def back_in_double_only(x, y):
    rank, last, gradient = dist.get_rank(), dist.get_world_size() - 1, None
    if rank < last:
        dist.recv(gradient := torch.empty(y.shape, dtype=torch.float64), src=rank + 1)
    y.backward(gradient)
    if rank > 0:
        dist.send(x.grad.double(), dst=rank - 1)


def back_the_last_waits_too(x, y):
    rank, last, gradient = dist.get_rank(), dist.get_world_size() - 1, torch.empty_like(y)
    dist.recv(gradient, src=(rank + 1) % (last + 1))
    y.backward(gradient)
    if rank > 0:
        dist.send(x.grad, dst=rank - 1)


def back_throws_the_handle_away(x, y):
    rank, last, gradient = dist.get_rank(), dist.get_world_size() - 1, None
    if rank < last:
        dist.recv(gradient := torch.empty_like(y), src=rank + 1)
    y.backward(gradient)
    if rank > 0:
        dist.isend(x.grad, dst=rank - 1)


def back_sent_twice(x, y):
    back_with_posted_messages(x, y)
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank < last:
        dist.recv(torch.empty_like(y), src=rank + 1)
    if rank > 0:
        dist.send(x.grad, dst=rank - 1)


def order_in_three_phases(stage, stages, micro_batches):
    warm = min(micro_batches, stages - stage - 1)
    for n in range(warm):
        yield f"F{n}"
    for n in range(micro_batches - warm):
        yield f"F{n + warm}"
        yield f"BW{n}"
    for n in range(micro_batches - warm, micro_batches):
        yield f"BW{n}"


def order_of_gpipe(stage, stages, micro_batches):
    return [f"F{n}" for n in range(micro_batches)] + [f"BW{n}" for n in range(micro_batches)]


def order_one_fewer_ahead(stage, stages, micro_batches):
    return list(order_in_three_phases(min(stage + 1, stages - 1), stages, micro_batches))


def order_one_more_ahead(stage, stages, micro_batches):
    return list(order_in_three_phases(stage - 1, stages, micro_batches))


def order_with_updates(stage, stages, micro_batches):
    return [
        each
        for word in order_in_three_phases(stage, stages, micro_batches)
        for each in ([word] if word[0] == "F" else [word, word.replace("BW", "U")])
    ]


def order_that_needs_many(stage, stages, micro_batches):
    order = [f"F{n}" for n in range(stages - stage)]
    for n in range(micro_batches):
        order += [f"BW{n}"] + ([f"F{n + stages - stage}"] if n + stages - stage < micro_batches else [])
    return order


def zero_by_a_list_of_waiting(stage, stages, micro_batches):
    order, waiting = [], []
    for word in order_in_three_phases(stage, stages, micro_batches):
        if word.startswith("F"):
            order.append(word)
            continue
        order.append(word.replace("BW", "B"))
        waiting.append(word.replace("BW", "W"))
        if len(waiting) > stage:
            order.append(waiting.pop(0))
    return order + waiting


def zero_without_a_list(stage, stages, micro_batches):
    backward = weights = 0
    for word in order_in_three_phases(stage, stages, micro_batches):
        if word[0] == "F":
            yield word
            continue
        yield f"B{backward}"
        backward += 1
        if backward - weights > stage:
            yield f"W{weights}"
            weights += 1
    yield from (f"W{n}" for n in range(weights, micro_batches))


def zero_for_many_micro_batches(stage, stages, micro_batches):
    order = _held_back(stage, stages, micro_batches, stage)
    return order[: len(order) - stage] + [f"W{n}" for n in range(micro_batches - stage, micro_batches)]


def zero_w_at_once(stage, stages, micro_batches):
    return [
        half
        for word in order_in_three_phases(stage, stages, micro_batches)
        for half in ([word] if word[0] == "F" else [word.replace("BW", "B"), word.replace("BW", "W")])
    ]


def zero_w_at_the_end(stage, stages, micro_batches):
    order = [word.replace("BW", "B") for word in order_in_three_phases(stage, stages, micro_batches)]
    return order + [f"W{n}" for n in range(micro_batches)]


def zero_each_waits_the_same(stage, stages, micro_batches):
    return _held_back(stage, stages, micro_batches, min(stage, 1))


def _held_back(stage, stages, micro_batches, by):
    order, waiting = [], []
    for word in order_in_three_phases(stage, stages, micro_batches):
        order.append(word.replace("BW", "B"))
        if word[0] == "B":
            waiting.append(word.replace("BW", "W"))
            order += [waiting.pop(0)] if len(waiting) > by else []
    return order + waiting


def zero_the_first_waits_longest(stage, stages, micro_batches):
    return _held_back(stage, stages, micro_batches, stages - 1 - stage)


def zero_without_w(stage, stages, micro_batches):
    return [word.replace("BW", "B") for word in order_in_three_phases(stage, stages, micro_batches)]


def zero_whole(stage, stages, micro_batches):
    return list(order_in_three_phases(stage, stages, micro_batches))


def ends_in_one_batch(gradient, other):
    theirs = torch.empty_like(gradient)
    both = [dist.P2POp(dist.isend, gradient, other), dist.P2POp(dist.irecv, theirs, other)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    gradient.add_(theirs)


def ends_by_rank(gradient, other):
    mine, theirs = gradient.clone(), torch.empty_like(gradient)
    if dist.get_rank() < other:
        dist.send(mine, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(mine, other)
    gradient += theirs


def ends_change_what_is_on_its_way(gradient, other):
    sending, theirs = dist.isend(gradient, dst=other), torch.empty_like(gradient)
    dist.recv(theirs, src=other)
    gradient += theirs
    sending.wait()


def ends_throw_the_handle_away(gradient, other):
    theirs = torch.empty_like(gradient)
    dist.isend(gradient.clone(), dst=other)
    dist.recv(theirs, src=other)
    gradient += theirs


def ends_both_send(gradient, other):
    theirs = torch.empty_like(gradient)
    dist.send(gradient, other)
    dist.recv(theirs, other)
    gradient += theirs


def ends_not_in_place(gradient, other):
    theirs, sending = torch.empty_like(gradient), dist.isend(gradient, other)
    dist.recv(theirs, other)
    sending.wait()
    gradient = gradient + theirs


def ends_average(gradient, other):
    ends_by_rank(gradient, other)
    gradient /= 2


def ends_swap(gradient, other):
    theirs, sending = torch.empty_like(gradient), dist.isend(gradient, other)
    dist.recv(theirs, other)
    sending.wait()
    gradient.copy_(theirs)


ANSWERS = {
    turns.check_backward: Answers(
        right=[back_with_posted_messages, back_from_a_number],
        wrong={
            back_without_sending: "not",
            back_with_ones: "those of ranks",
            back_in_double_only: "float32",
            back_the_last_waits_too: "rank 3",
            back_sent_twice: "messages",
            back_throws_the_handle_away: "keep its handle",
        },
    ),
    turns.check_order: Answers(
        right=[order_in_three_phases],
        wrong={
            order_of_gpipe: "too far ahead",
            order_one_fewer_ahead: "units more",
            order_one_more_ahead: "too far ahead",
            order_that_needs_many: "stages",
            order_with_updates: "whole BW",
            zero_w_at_once: "whole BW",
        },
    ),
    turns.check_zero_bubble: Answers(
        right=[zero_by_a_list_of_waiting, zero_without_a_list],
        wrong={
            zero_w_at_once: "should idle",
            zero_w_at_the_end: "hold more",
            zero_each_waits_the_same: "should idle",
            zero_the_first_waits_longest: "hold more",
            zero_without_w: "missing",
            zero_for_many_micro_batches: "'W-1' is no action",
            zero_whole: "whole",
        },
    ),
    turns.check_ends: Answers(
        right=[ends_in_one_batch, ends_by_rank],
        wrong={
            ends_change_what_is_on_its_way: "changed before",
            ends_throw_the_handle_away: "keep its handle",
            ends_both_send: "waits in send",
            ends_not_in_place: "hold the sum",
            ends_average: "hold the sum",
            ends_swap: "hold the sum",
        },
    ),
}
