"""Failures of large runs: the papers' formulas, and the simulation that knows none of them."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from course_lib.predict import daly, mean_time_between_stops, waste, young
from course_pages.lesson17.stops import slowest_of
from tests.predict.refused import refused

DAY, YEAR = 86_400, 365.25 * 86_400


def simulate(
    interval_s: float, checkpoint_s: float, between_stops_s: float, restart_s: float = 0.0, stops: int = 10_000,
    seed: int = 0,
) -> float:  # fmt: skip
    """The share of the time that was no progress, over `stops` failures.

    The run works `interval_s`, saves for `checkpoint_s`, and so on; a stop throws away what has come since the last
    whole checkpoint, and the run is back `restart_s` later. A stop while it restarts begins the restart anew.
    """
    draws = np.random.default_rng(seed).exponential(between_stops_s, stops)
    running = np.maximum(0.0, draws - restart_s)  # a stop within the restart: nothing was reached
    saved = np.floor(running / (interval_s + checkpoint_s)) * interval_s
    return float(1 - saved.sum() / draws.sum())


def test_llama_3_stopped_every_three_hours() -> None:
    between = 54 * DAY / 419  # 419 unexpected stops in 54 days on 16,384 GPUs (Grattafiori et al. 2024, §3.3.4)
    assert between / 3600 == pytest.approx(3.1, abs=0.05)
    of_a_gpu = between * 16_384
    assert of_a_gpu / YEAR == pytest.approx(5.8, abs=0.05)
    assert mean_time_between_stops(of_a_gpu, 100_000) / 60 == pytest.approx(30, abs=1)


def test_a_checkpoint_of_a_minute_is_made_every_nineteen() -> None:
    assert young(60, 3.1 * 3600) / 60 == pytest.approx(19.3, abs=0.1)


@pytest.mark.parametrize("between_s", [1830, 3.1 * 3600, 30 * DAY])
def test_dalys_interval_is_where_the_waste_is_flat(between_s: float) -> None:
    """There (1 - τ/M)·e^((τ+δ)/M) = 1; Young's is some per cent off where stops come often."""
    exact = float(brentq(lambda t: (1 - t / between_s) * math.exp((t + 60) / between_s) - 1, 1, between_s))  # type: ignore[arg-type]
    assert daly(60, between_s) == pytest.approx(exact, rel=1e-3)
    assert abs(young(60, between_s) / exact - 1) > 0.03 or between_s > DAY
    for interval in (young(60, between_s), 0.9 * exact, 1.1 * exact):
        assert waste(exact, 60, between_s) < waste(interval, 60, between_s)


def test_young_and_daly_agree_where_checkpoints_are_short() -> None:
    assert daly(1, 1e8) == pytest.approx(young(1, 1e8), rel=1e-3)
    assert daly(100, 40) == 40


@pytest.mark.parametrize(("between_s", "restart_s"), [(1830, 0), (1830, 300), (3.1 * 3600, 600)])
def test_the_simulation_loses_what_the_formula_says(between_s: float, restart_s: float) -> None:
    interval = young(60, between_s)
    lost = [simulate(interval, 60, between_s, restart_s, seed=seed) for seed in range(3)]
    assert sum(lost) / 3 == pytest.approx(waste(interval, 60, between_s, restart_s), abs=0.01)


def test_the_slowest_of_many_is_slower() -> None:
    assert slowest_of(2, 0.02) == pytest.approx(1 + 0.02 / 3.14159**0.5, abs=2e-3)  # the mean of two normals' largest
    assert slowest_of(10_000, 0.02) > slowest_of(100, 0.02)


@pytest.mark.parametrize("times", [(1e6, 60, 1000), (60, 1e6, 1000), (60, 60, 1000, 1e6)])
def test_who_never_comes_through_loses_everything(times: tuple[float, ...]) -> None:
    assert waste(*times) == 1
    assert waste(69_000, 60, 100) == 1  # e^690 is a float


test_times_that_are_none_are_refused = refused(
    *((call, "must be positive") for call in (lambda: young(0, 1), lambda: daly(1, -1), lambda: waste(0, 1, 1)))
)
