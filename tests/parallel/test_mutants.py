"""The checks reject what is known to be wrong, and accept what is right."""

import functools

import pytest

from course_kit import ranks
from course_kit.ranks import RankFailure
from course_lib.collectives import algorithms as collectives
from course_lib.collectives import schedules
from tests.mutants.parallel import collectives as wrong_collectives
from tests.mutants.parallel import data as wrong_data
from tests.parallel import checks

BUCKET_BYTES = 256


@pytest.mark.parametrize("mutant", wrong_data.WRONG_VALUES)
def test_wrong_values_are_rejected(mutant):
    """A rank that stops at its first wrong step leaves the others waiting, so one rank's word is enough."""
    with pytest.raises(RankFailure, match="AssertionError: (at the start|after step)"):
        ranks.run(checks.check_parity, mutant, checks.odd, "sgd", world_size=4, timeout_s=30, diagnose=False)


@pytest.mark.parametrize("mutant", wrong_data.WRONG_TRAFFIC)
def test_wrong_traffic_is_rejected(mutant):
    bucket_bytes = 2**20 if mutant is wrong_data.OneByOne else BUCKET_BYTES
    with pytest.raises(RankFailure, match="AssertionError: (no_sync )?sent"):
        ranks.run(checks.check_traffic, mutant, checks.odd, bucket_bytes, world_size=4, timeout_s=30, diagnose=False)


def test_adam_hardly_notices_a_sum_for_a_mean():
    """Why every parity check runs with SGD too: Adam divides a constant factor out again, all but its eps."""
    with pytest.raises(RankFailure, match=r"AssertionError: after step 0: .* is off by \d\.\de-0[78]"):
        ranks.run(checks.check_parity, wrong_data.SumForMean, checks.gpt, "adam", world_size=2, diagnose=False)


@pytest.mark.parametrize("mutant", wrong_collectives.WRONG)
def test_false_rings_are_rejected(mutant):
    with pytest.raises(RankFailure, match="AssertionError"):
        ranks.run(checks.check_all_reduce, mutant, "ring", world_size=4, timeout_s=30, diagnose=False)


@pytest.mark.parametrize("algorithm", schedules.ALL_REDUCE)
def test_the_real_ones_are_accepted(algorithm):
    right = functools.partial(collectives.all_reduce, algorithm=algorithm)
    ranks.run(checks.check_all_reduce, right, algorithm, world_size=4)
    ranks.run(checks.check_all_reduce, right, algorithm, world_size=2)
