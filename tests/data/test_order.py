"""The order of samples: a bijection for every n and key, spread well, the same for all numbers of ranks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from course_lib.data.order import Order, permuted
from tests.predict.refused import refused


def test_places_may_come_in_any_order_and_number() -> None:
    whole = permuted(range(1000), 1000, 4)
    places = [999, 3, 3, 500]
    assert permuted(places, 1000, 4).tolist() == whole[places].tolist()
    assert permuted([], 1000, 4).tolist() == [] and permuted(17, 1000, 4).tolist() == [whole[17]]


def test_a_large_corpus_costs_no_table() -> None:
    n = 10**12 + 39
    samples = permuted(range(0, n, n // 1000), n, 1, 0)
    assert len(set(samples.tolist())) == len(samples) and samples.min() >= 0 and samples.max() < n
    assert 0.45 < samples.mean() / n < 0.55


def test_all_orders_of_four_are_about_equally_frequent() -> None:
    """24 orders of 4,800 keys, 200 each: chi square stays below its 99.9 % quantile of 23 degrees of freedom, 49.7."""
    counts = Counter(tuple(permuted(range(4), 4, seed).tolist()) for seed in range(4800))
    assert len(counts) == 24 and sum((count - 200) ** 2 / 200 for count in counts.values()) < 49.7


def test_another_epoch_is_another_order_and_neighbours_part() -> None:
    first, second = permuted(range(5000), 5000, 3, 0), permuted(range(5000), 5000, 3, 1)
    assert (first == second).sum() < 12  # 1 is expected
    assert (np.abs(np.diff(first)) == 1).sum() < 14  # 2 are expected


@pytest.mark.parametrize(("n", "batch"), [(40, 8), (44, 8), (5, 12), (1000, 7)])
def test_ranks_share_the_batch_whatever_their_number(n: int, batch: int) -> None:
    """Row j of a step is the same sample for all world sizes, also where an epoch ends inside of the batch."""
    order = Order(n, batch, seed=5)
    for step in range(12):
        whole = order.of(step)
        assert len(whole) == batch
        for world_size in (2, 3, 4, 8, 16):
            dealt = np.full(batch, -1)
            for rank in range(world_size):
                dealt[rank::world_size] = order.of(step, rank, world_size)
            assert np.array_equal(dealt, whole)


def test_each_epoch_has_every_sample_once() -> None:
    order = Order(44, 8, seed=1)
    run = np.concatenate([order.of(step) for step in range(22)])  # four epochs
    epochs = run.reshape(4, 44)
    assert (np.sort(epochs) == np.arange(44)).all() and not (epochs[0] == epochs[1]).all()


test_what_there_is_not_is_refused = refused(
    *(
        (lambda places=places, n=n: permuted(places, n, 0), "give places from 0 to n - 1")
        for places, n in (([10], 10), ([-1], 10), ([0], 0))
    ),
    *((lambda rank=rank: Order(40, 8).of(0, rank, 4), f"rank={rank} of 4: give 0 to 3") for rank in (5, 4, -1)),
    *((lambda n=n, batch=batch: Order(n, batch), "both must be at least 1") for n, batch in ((0, 8), (8, 0))),
)


@pytest.mark.parametrize("key", [(0,), *(pytest.param(k, marks=pytest.mark.nightly) for k in ((7, 3), (2**40, 1, 5)))])
def test_every_sample_has_one_place(key: tuple[int, ...]) -> None:
    for n in [*range(1, 2001), 2**12 - 1, 2**12, 2**12 + 1, 9_999, 65_537, 100_000]:
        assert np.array_equal(np.sort(permuted(np.arange(n), n, *key)), np.arange(n)), n
