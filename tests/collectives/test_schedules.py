"""Schedules on paper: every message has both its ends, and everybody ends with what the collective promises."""

from collections import Counter

import pytest

from course_lib import predict
from course_lib.collectives import schedules
from course_lib.collectives.schedules import Receive, Round, Send, hold

WORLD_SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17)


def everyone(schedule, world_size, **kwargs):
    return [schedule(world_size, rank, **kwargs) for rank in range(world_size)]


def own_summand(world_size, parts):
    return [[Counter({rank: 1}) for _ in range(parts)] for rank in range(world_size)]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("algorithm", schedules.ALL_REDUCE)
def test_all_reduce_adds_every_summand_once_everywhere(algorithm, world_size):
    parts = 1 if algorithm in schedules.WHOLE else world_size
    frames = hold(everyone(schedules.ALL_REDUCE[algorithm], world_size), own_summand(world_size, parts))
    total = Counter(range(world_size))
    assert frames[-1] == [[total] * parts] * world_size
    for rank in range(world_size):
        sends = [send for each in schedules.ALL_REDUCE[algorithm](world_size, rank) for send in each.sends]
        assert len(sends) == predict.all_reduce(1, world_size, algorithm, rank).messages


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_double_tree_adds_every_summand_once_and_nobody_sends_more_than_twice_the_tensor(world_size):
    trees = everyone(schedules.all_reduce_double_tree, world_size)
    frames = hold(trees, own_summand(world_size, 2))
    assert frames[-1] == [[Counter(range(world_size))] * 2] * world_size
    assert len(frames) - 1 == 2 * (world_size - 1).bit_length()
    messages = [sum(len(each.sends) for each in tree) for tree in trees]
    assert max(messages) <= 4, "four halves: two tensors"
    assert sum(messages) == 4 * (world_size - 1), "each of two trees, each edge up and down"


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_broadcast_and_reduce_from_every_root(world_size):
    for root in range(world_size):
        start = own_summand(world_size, 1)
        sent = hold(everyone(schedules.broadcast, world_size, root=root), start)
        assert sent[-1] == [[Counter({root: 1})]] * world_size
        assert len(sent) - 1 == (world_size - 1).bit_length()
        summed = hold(everyone(schedules.reduce, world_size, root=root), start)
        assert summed[-1][root] == [Counter(range(world_size))]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_halves_of_the_ring_and_all_to_all_bring_each_part_to_its_rank(world_size):
    everybody = range(world_size)
    scattered = hold(everyone(schedules.reduce_scatter, world_size), own_summand(world_size, world_size))[-1]
    assert all(scattered[rank][rank] == Counter(range(world_size)) for rank in range(world_size))
    start = [[Counter({rank: 1}) if part == rank else Counter() for part in everybody] for rank in everybody]
    gathered = hold(everyone(schedules.all_gather, world_size), start)[-1]
    assert gathered == [[Counter({part: 1}) for part in everybody]] * world_size
    start = [[Counter({100 * rank + part: 1}) for part in everybody] for rank in everybody]
    received = hold(everyone(schedules.all_to_all, world_size), start)[-1]
    assert received == [[Counter({100 * sender + rank: 1}) for sender in everybody] for rank in everybody]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_nobody_overwrites_what_it_is_sending(world_size):
    """`execute` receives into place, so a round must not send from where it receives."""
    in_place = [schedules.broadcast, schedules.reduce, schedules.reduce_scatter, schedules.all_gather]
    for schedule in [*in_place, *schedules.ALL_REDUCE.values()]:
        for each in (each for rank in range(world_size) for each in schedule(world_size, rank)):
            sent = {send.part for send in each.sends}
            overwritten = {receive.part for receive in each.receives if not receive.add}
            assert not sent & overwritten


def test_a_message_with_one_end_is_refused_and_named():
    send, receive = Round(sends=(Send(1),)), Round(receives=(Receive(0),))
    start = own_summand(2, 1)
    with pytest.raises(ValueError, match="rank 0 sends to rank 1, which does not receive"):
        hold([[send], [Round()]], start)
    with pytest.raises(ValueError, match="rank 1 waits for a part from rank 0, which sends nothing"):
        hold([[Round()], [receive]], start)
    with pytest.raises(ValueError, match=r"the ranks have \[1, 0\] rounds"):
        hold([[send], []], start)
    assert hold([[send], [receive]], start)[-1][1] == [Counter({0: 1})]
