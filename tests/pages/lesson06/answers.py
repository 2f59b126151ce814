"""Answers to the turns of lesson 06."""

# pyright: reportOptionalMemberAccess=false

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.collectives import algorithms as collectives
from course_pages.lesson06 import turns
from tests.pages.answers import Answers


def posted_both_ways(tensor):
    me, mine = dist.get_rank(), tensor.clone()
    inbox = {rank: torch.empty_like(tensor) for rank in range(dist.get_world_size()) if rank != me}
    calls = [dist.P2POp(dist.isend, mine, rank) for rank in inbox]
    calls += [dist.P2POp(dist.irecv, box, rank) for rank, box in inbox.items()]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    for box in inbox.values():
        tensor += box


def the_backend(tensor):
    dist.all_reduce(tensor)


def sends_the_running_sum(tensor):
    theirs, me = torch.empty_like(tensor), dist.get_rank()
    others = [rank for rank in range(dist.get_world_size()) if rank != me]
    posted = [dist.isend(tensor.clone(), other) for other in others]
    for other in others:
        dist.recv(theirs, other)
        tensor.copy_(theirs + tensor if other == others[0] else tensor)
    for each in posted:
        each.wait()


def sends_no_copy(tensor):
    theirs, me = torch.empty_like(tensor), dist.get_rank()
    others = [rank for rank in range(dist.get_world_size()) if rank != me]
    posted = [dist.isend(tensor, other) for other in others]
    for other in others:
        dist.recv(theirs, other)
        tensor += theirs
    for each in posted:
        each.wait()


def around_a_ring(tensor):
    rank, p, going = dist.get_rank(), dist.get_world_size(), tensor.clone()
    for _ in range(p - 1):
        coming = torch.empty_like(tensor)
        posted = dist.isend(going, (rank + 1) % p)
        dist.recv(coming, (rank - 1) % p)
        posted.wait()
        tensor += coming
        going = coming


def twice(tensor):
    other = torch.zeros_like(tensor)
    posted_both_ways(other)
    posted_both_ways(tensor)


def sends_and_waits(tensor):
    mine, theirs, me = tensor.clone(), torch.empty_like(tensor), dist.get_rank()
    others = [rank for rank in range(dist.get_world_size()) if rank != me]
    for other in others:
        dist.send(mine, other)
    for other in others:
        dist.recv(theirs, other)
        tensor += theirs


def gather_with_a_walker(parts):
    rank, p = dist.get_rank(), dist.get_world_size()
    going = rank
    for _ in range(p - 1):
        coming = (going - 1) % p
        box = torch.empty_like(parts[coming])
        works = [dist.isend(parts[going].clone(), (rank + 1) % p), dist.irecv(box, (rank - 1) % p)]
        for work in works:
            work.wait()
        parts[coming].copy_(box)
        going = coming


def gather_by_the_backend(parts):
    dist.all_gather(list(parts), parts[dist.get_rank()].clone())


def gather_with_rank_0_listening_first(parts):
    rank, p = dist.get_rank(), dist.get_world_size()
    for step in range(p - 1):
        going, coming = parts[(rank - step) % p], parts[(rank - step - 1) % p]
        if rank == 0:
            dist.recv(coming, p - 1)
            dist.send(going, 1)
        else:
            dist.send(going, (rank + 1) % p)
            dist.recv(coming, rank - 1)


def gather_parts_of_one_length(parts):
    rank, p = dist.get_rank(), dist.get_world_size()
    going = parts[rank]
    for step in range(p - 1):
        coming = torch.empty_like(going)
        posted = dist.isend(going, (rank + 1) % p)
        dist.recv(coming, (rank - 1) % p)
        posted.wait()
        parts[(rank - step - 1) % p].copy_(coming)
        going = coming


def gather_all_that_is_there(parts):
    rank, p = dist.get_rank(), dist.get_world_size()
    for step in range(p - 1):
        theirs = torch.empty_like(torch.cat(parts))
        posted = dist.isend(torch.cat(parts), (rank + 1) % p)
        dist.recv(theirs, (rank - 1) % p)
        posted.wait()
        came = (rank - step - 1) % p
        parts[came].copy_(theirs.split([len(part) for part in parts])[came])


def gather_one_step_short(parts):
    rank, p = dist.get_rank(), dist.get_world_size()
    for step in range(p - 2):
        posted = dist.isend(parts[(rank - step) % p], (rank + 1) % p)
        dist.recv(parts[(rank - step - 1) % p], (rank - 1) % p)
        posted.wait()


def gather_to_all(parts):
    rank, p = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(p) if other != rank]
    posted = [dist.isend(parts[rank], other) for other in others]
    for other in others:
        dist.recv(parts[other], other)
    for each in posted:
        each.wait()


def gather_new_tensors(parts):
    rank, p = dist.get_rank(), dist.get_world_size()
    for step in range(p - 1):
        box = torch.empty_like(parts[0])
        posted = dist.isend(parts[(rank - step) % p], (rank + 1) % p)
        dist.recv(box, (rank - 1) % p)
        posted.wait()
        parts[(rank - step - 1) % p] = box


def by_lowest_bit(tensor):
    rank, p = dist.get_rank(), dist.get_world_size()
    level = (rank & -rank) if rank else 1 << (p - 1).bit_length()
    if rank:
        dist.recv(tensor, rank - level)
    while (level := level >> 1) > 0:
        if rank + level < p:
            dist.send(tensor, rank + level)


def from_the_root_to_all(tensor):
    if dist.get_rank() == 0:
        for other in range(1, dist.get_world_size()):
            dist.send(tensor, other)
    else:
        dist.recv(tensor, 0)


def along_a_chain(tensor):
    rank, p = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(tensor, rank - 1)
    if rank < p - 1:
        dist.send(tensor, rank + 1)


def smallest_step_first(tensor):
    rank, p = dist.get_rank(), dist.get_world_size()
    level, step = (rank & -rank) if rank else p, 1
    if rank:
        dist.recv(tensor, rank - level)
    while step < level and rank + step < p:
        dist.send(tensor, rank + step)
        step *= 2


def by_doubling(tensor):
    rank, p, step = dist.get_rank(), dist.get_world_size(), 1
    while step < p:
        if rank < step and rank + step < p:
            dist.send(tensor, rank + step)
        elif step <= rank < 2 * step:
            dist.recv(tensor, rank - step)
        step *= 2


def by_the_backend(tensor):
    dist.broadcast(tensor, 0)


def down_from(step, tensor):
    """Steps that halve, from `step` to 1: right where that is a power of two, and half of the ranks or more."""
    rank, p = dist.get_rank(), dist.get_world_size()
    while step:
        if rank % (2 * step) == step:
            dist.recv(tensor, rank - step)
        elif rank % (2 * step) == 0 and rank + step < p:
            dist.send(tensor, rank + step)
        step //= 2


def only_for_powers_of_two(tensor):
    down_from(dist.get_world_size() // 2, tensor)


def only_to_eight(tensor):
    down_from(4, tensor)


def from_64_down(tensor):
    down_from(64, tensor)


def leaders_by_hand(tensor, node, leaders):
    collectives.reduce(tensor, group=node)
    if dist.get_rank() in dist.get_process_group_ranks(leaders):
        other = torch.empty_like(tensor)
        me, ranks_of = dist.get_rank(), dist.get_process_group_ranks(leaders)
        to = next(rank for rank in ranks_of if rank != me)
        posted = dist.isend(tensor.clone(), to)
        dist.recv(other, to)
        posted.wait()
        tensor += other
    collectives.broadcast(tensor, group=node)


def leaders_in_two_calls(tensor, node, leaders):
    collectives.all_reduce(tensor, group=node)
    if dist.get_rank(leaders) >= 0:
        collectives.reduce(tensor, group=leaders)
        collectives.broadcast(tensor, group=leaders)
    dist.broadcast(tensor, group_src=0, group=node)


def by_calls_that_nobody_counts(tensor, node, leaders):
    collectives.reduce(tensor, group=node)
    if dist.get_rank(node) == 0:
        dist.all_reduce(tensor, group=leaders)
    collectives.broadcast(tensor, group=node)


def one_level(tensor, node, leaders):
    collectives.all_reduce(tensor)


def without_spreading(tensor, node, leaders):
    collectives.reduce(tensor, group=node)
    if dist.get_rank(node) == 0:
        collectives.all_reduce(tensor, group=leaders)


def summed_twice(tensor, node, leaders):
    collectives.all_reduce(tensor, group=node)
    collectives.all_reduce(tensor)


ANSWERS = {
    turns.check_everyone: Answers(
        right=[posted_both_ways],
        wrong={
            the_backend: "should send its 1200 bytes",
            sends_the_running_sum: "end with the sum",
            sends_no_copy: "end with the sum",
            twice: "should send its 1200 bytes",
            around_a_ring: "to each other one",
            sends_and_waits: "rank 0 waits in send",
        },
    ),
    turns.check_gather: Answers(
        right=[gather_with_a_walker, gather_with_rank_0_listening_first],
        wrong={
            gather_parts_of_one_length: "do not fit",
            gather_all_that_is_there: "3 should send 2 messages, 16 bytes",
            gather_by_the_backend: "messages",
            gather_one_step_short: "should end with",
            gather_to_all: "right neighbour",
            gather_new_tensors: "that it was given",
        },
    ),
    turns.check_down: Answers(
        right=[by_lowest_bit, by_doubling, from_64_down],
        wrong={
            from_the_root_to_all: "none should send more",
            along_a_chain: "rounds",
            smallest_step_first: "rounds",
            by_the_backend: "messages",
            only_for_powers_of_two: "rank",
            only_to_eight: "ranks [8] do not",
        },
    ),
    turns.check_two_levels: Answers(
        right=[leaders_by_hand, leaders_in_two_calls],
        wrong={
            one_level: "leave",
            without_spreading: "end with the sum",
            summed_twice: "end with the sum",
            by_calls_that_nobody_counts: "in calls of `collectives` 0 bytes do",
        },
    ),
}
