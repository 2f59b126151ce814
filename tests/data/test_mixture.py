"""Mixtures: never a whole sample off, exact after each period, a function of the sample's number."""

from __future__ import annotations

import random

from course_lib.data.mixture import Mixture
from tests.predict.refused import refused


def test_no_source_is_ever_a_whole_sample_off() -> None:
    dice = random.Random(0)
    cases = [[dice.randint(1, 60) for _ in range(dice.randint(1, 9))] for _ in range(200)]
    for weights in [*cases, [97, 1, 1, 1], [60, 22, 8, 8, 3]]:
        mixture, given = Mixture(weights), [0] * len(weights)
        for t in range(2 * mixture.period + 3):
            source, before = mixture.at(t)
            assert before == given[source]
            given[source] += 1
            assert all(abs(n * mixture.period - w * (t + 1)) < mixture.period for n, w in zip(given, weights))


def test_a_sample_far_away_is_found_at_once() -> None:
    mixture = Mixture([6, 3, 1])
    assert [mixture.at(t)[0] for t in range(10)].count(0) == 6
    source, before = mixture.at(10**15 + 4)
    assert (source, before) == (mixture.at(4)[0], 10**14 * mixture.weights[source] + mixture.at(4)[1])


test_weights_that_are_none_are_refused = refused(
    *((lambda w=w: Mixture(w), "give whole numbers above 0") for w in ([], [1, 0], [0.5, 0.5], [3, -1]))  # type: ignore[arg-type]
)
