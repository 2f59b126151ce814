"""Lab 17's clusters: a small layout by hand, and what a probe refuses."""

from __future__ import annotations

import numpy as np
import pytest

from course_pages.lesson17.three_runs import (
    PROBES,
    Cluster,
    Layout,
    Machine,
    Run,
    drawn,
    held,
    layouts,
    legal,
    seconds,
    simulator,
)

RUN = Run(layers=2, width=8, heads=2, hidden=32, vocab=10, seq=4, batch=4)
CLUSTER = Cluster(gpus=2, node=1, memory_gib=1e-4, sparse_peak=2e6)
MACHINE = Machine(efficiency=0.5, link=1e3, card=1e2, fixed=0.25)


def test_two_stages_hold_and_take_what_a_hand_counts() -> None:
    two = Layout(1, 2, 1, 1, 1, 0, 1, 0)
    states = 18 * (4 * 64 + 2 * 8 * 32 + 10 * 8)
    kept = 4 * (18 * 8 + 4 * 32)
    assert held(RUN, two).stages == (states + 2 * kept, states + kept + 4 * 4 * 10)
    block = 3 * 4 * (8 * 64 + 4 * 8 * 32 + 2 * 4 * 8) / 5e5
    head = 6 * 4 * 8 * 10 / 5e5
    assert seconds(RUN, two, CLUSTER, MACHINE) == pytest.approx(2 * block + head + 3 * (block + head) + 0.25)


def test_two_replicas_send_their_gradients_by_card() -> None:
    parameters = 2 * (4 * 64 + 2 * 8 * 32) + 2 * 10 * 8
    quick = MACHINE._replace(card=float("inf"))
    for zero, each in enumerate((8, 6, 4 * 2 + 2, 8 * 2)):
        layout = Layout(1, 1, 2, 1, 1, zero, 1, 0)
        sent = seconds(RUN, layout, CLUSTER, MACHINE) - seconds(RUN, layout, CLUSTER, quick)
        assert sent == pytest.approx(each * parameters / 2 / 100)


def test_arrays_say_what_numbers_say() -> None:
    run, cluster, machine = drawn(2, 0)
    every = layouts(run, cluster)
    assert len(every.rows) == 8 * len(legal(run, cluster))
    for n in range(0, len(every.rows), 997):
        one = Layout(*(int(column[n]) for column in every))
        assert seconds(run, one, cluster, machine) == pytest.approx(seconds(run, every, cluster, machine)[n])
        assert held(run, one).stages[0] == pytest.approx(held(run, every).stages[0][n])


def test_a_probe_has_noise_and_an_end() -> None:
    run, cluster, machine = drawn(0, 0)
    probe, judge = simulator(run, cluster, machine, 0)
    with pytest.raises(ValueError, match="not a legal layout"):
        probe(Layout(3, 1, 1, 1, 1, 0, 1, 0))
    full, fine = (
        Layout(*(int(column[n]) for column in judge.layouts)) for n in (judge.fit.argmin(), judge.fit.argmax())
    )
    with pytest.raises(MemoryError, match="out of memory"):
        probe(full)
    took = np.array([probe(fine) for _ in range(PROBES - 1)])
    assert took.std() > 0
    np.testing.assert_allclose(took, judge.seconds[judge.fit.argmax()], rtol=0.05)
    with pytest.raises(ValueError, match="one more"):
        probe(fine)
    assert len(judge.asked) == PROBES and len(judge.refused) == 2


@pytest.mark.parametrize("seed", range(9))
def test_each_cluster_has_layouts_that_fit(seed: int) -> None:
    run, cluster, machine = drawn(seed, 1)
    assert simulator(run, cluster, machine, seed)[1].fit.any()
