"""The sampler: every item once, in shares that fit, as a function of (seed, epoch, rank) alone."""

from collections import Counter

import pytest

from course_lib.parallel import ShardedSampler


@pytest.mark.parametrize("n_items", [0, 1, 5, 8, 9, 23, 24])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_no_item_is_lost_or_read_twice(n_items, world_size, batch_size):
    samplers = [ShardedSampler(n_items, batch_size, rank, world_size) for rank in range(world_size)]
    epochs = [sampler.epoch(3) for sampler in samplers]
    assert Counter(i for epoch in epochs for share in epoch for i in share) == Counter(range(n_items))
    for steps in zip(*epochs, strict=True):
        sizes = [len(share) for share in steps]
        assert max(sizes) - min(sizes) <= 1
    assert [len(sampler) for sampler in samplers] == [len(epoch) for epoch in epochs]
    assert [sum(map(len, steps)) for steps in zip(*epochs)][:-1] == [batch_size] * (len(epochs[0]) - 1)


def test_the_global_batches_do_not_depend_on_the_number_of_ranks():
    def joined(world_size):
        epochs = [ShardedSampler(23, 6, rank, world_size, seed=5).epoch(1) for rank in range(world_size)]
        return [[i for share in steps for i in share] for steps in zip(*epochs)]

    assert joined(1) == joined(2) == joined(4)


def test_the_order_belongs_to_seed_and_epoch():
    first = ShardedSampler(100, 10, seed=1)
    assert first.epoch(0) == ShardedSampler(100, 10, seed=1).epoch(0)
    others = [first.epoch(1), ShardedSampler(100, 10, seed=2).epoch(0)]
    assert all(first.epoch(0) != other for other in others)
    assert ShardedSampler(5, 2, shuffle=False).epoch(7) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("wrong", [{"rank": 2, "world_size": 2}, {"batch_size": 0}, {"n_items": -1}, {"rank": -1}])
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match="give 0 or more items"):
        ShardedSampler(**{"n_items": 4, "batch_size": 2, **wrong})
