"""Scaling laws: gradients, fits that find the law that made the runs, what to buy, and how far to trust it."""

from __future__ import annotations

import numpy as np
import pytest

from course_lib.predict.laws import (
    CHINCHILLA,
    CHINCHILLA_UNROUNDED,
    EPOCH,
    LeftOut,
    Runs,
    ScalingLaw,
    fit_law,
    huber,
    left_out,
    resampled,
    spread_at,
)
from tests.predict.refused import refused

TRUE = ScalingLaw(1.4, 9.0, 120.0, 0.37, 0.44)
BUDGETS = np.repeat([3e10, 6e10, 1.2e11, 2.4e11, 4.8e11], 6)


def made(law: ScalingLaw, noise: float = 0.0, seed: int = 0) -> Runs:
    n = np.tile(np.geomspace(3e3, 1e5, 6), 5)
    losses = law.loss(n, BUDGETS / 6 / n)
    return Runs(n, BUDGETS / 6 / n, losses * np.exp(noise * np.random.default_rng(seed).standard_normal(30)))


def test_the_optimum_spends_the_budget_and_has_the_least_loss() -> None:
    for law in (TRUE, CHINCHILLA, EPOCH):
        n, d = law.optimum(5.76e23)
        assert 6 * n * d == pytest.approx(5.76e23)
        others = n * np.geomspace(0.1, 10, 2001)
        assert others[np.argmin(law.loss(others, 5.76e23 / 6 / others))] == pytest.approx(n, rel=0.005)
        assert law.optimum(1e3 * 5.76e23)[0] / n == pytest.approx(1e3**law.a)


def test_the_optimum_of_published_laws() -> None:
    """Recomputed by hand from the coefficients: tokens a parameter for Gopher's budget."""
    ratios = [d / n for n, d in (law.optimum(5.76e23) for law in (CHINCHILLA, CHINCHILLA_UNROUNDED, EPOCH))]
    assert ratios == pytest.approx([92.6, 58.9, 18.6], rel=0.02)


@pytest.mark.parametrize("entropy", [None, 1.3])
def test_the_gradient_is_the_difference_quotient(entropy: float | None) -> None:
    runs = made(TRUE, 0.01)
    point = np.array([2.0, 4.5, 0.35, 0.42, np.log(1.3)])[: 4 if entropy else 5]
    _, slope = huber(point, runs, entropy, 0.05)
    for place in range(len(point)):
        step = np.zeros(len(point))
        step[place] = 1e-6
        quotient = (huber(point + step, runs, entropy, 0.05)[0] - huber(point - step, runs, entropy, 0.05)[0]) / 2e-6
        assert slope[place] == pytest.approx(quotient, rel=1e-4, abs=1e-8)


def test_huber_is_a_square_and_then_a_line() -> None:
    runs = Runs(np.array([1e4]), np.array([1e6]), np.array([1.0]))

    def at(off: float) -> float:  # only E is left
        return huber(np.array([-50.0, -50.0, 0.1, 0.1, off]), runs)[0]

    assert at(5e-4) == pytest.approx(5e-4**2 / 2) and at(0.1) == pytest.approx(1e-3 * (0.1 - 5e-4))
    assert np.isfinite(huber(np.array([800.0, 800.0, 0.1, 0.1, 800.0]), runs)[0])


def test_errors_grow_with_doublings() -> None:
    errors = [LeftOut(2, 0.01), LeftOut(4, -0.02), LeftOut(8, 0.03)]
    assert spread_at(errors, 2) == pytest.approx(0.01) and spread_at(errors, 16) == pytest.approx(0.04)


FEW = made(TRUE).where(np.arange(4))  # with the entropy given, they are enough
test_too_little_is_refused = refused(
    (lambda: fit_law(FEW), "4 runs for 5 coefficients: give more runs, or the entropy"),
    (lambda: spread_at([], 10), "give some errors"),
    (lambda: spread_at([LeftOut(2, 0.01)], 1), "give some errors"),
)


def test_an_error_is_the_mean_over_the_runs_of_a_budget_that_the_fit_has_not_seen() -> None:
    """Ten runs of one budget follow the law; of three larger ones, the losses above E are 10, 20 and 60 % too large."""
    n = np.geomspace(3e3, 1e5, 13)
    budgets = np.repeat([6e10, 2.4e11], [10, 3])
    runs = Runs(n, budgets / 6 / n, TRUE.loss(n, budgets / 6 / n))
    excess = np.array([1.0] * 10 + [1.1, 1.2, 1.6])
    (error,) = left_out(runs._replace(losses=TRUE.E + (runs.losses - TRUE.E) * excess), budgets, TRUE.E)
    assert error.times == 4
    assert error.error == pytest.approx(np.mean([1 / 1.1, 1 / 1.2, 1 / 1.6]) - 1, abs=0.01)


def test_resampled_fits_spread_with_the_noise_and_are_the_same_each_time() -> None:
    spreads = []
    for noise in (0.002, 0.01):
        runs = made(TRUE, noise)
        law = fit_law(runs, TRUE.E)
        fits = resampled(runs, law, TRUE.E, times=20)
        assert fits == resampled(runs, law, TRUE.E, times=20)
        spreads.append(np.std([each.a for each in fits]))
    assert 2 * spreads[0] < spreads[1] < 0.1


def test_left_out_budgets_betray_a_form_that_is_wrong_and_resampling_does_not() -> None:
    """Runs of a world with a kink: from 1e6 tokens on, text helps less."""
    runs = made(TRUE)
    kinked = runs._replace(losses=runs.losses + 0.01 * np.log(np.maximum(1, BUDGETS / 6e10)))
    right, wrong = left_out(runs, BUDGETS, TRUE.E), left_out(kinked, BUDGETS, TRUE.E)
    assert [each.times for each in right] == pytest.approx([2, 4, 8, 2, 4, 2][: len(right)]) and len(right) == 6
    assert max(abs(each.error) for each in right) < 1e-3
    assert wrong[2].error < wrong[0].error < -0.01  # too hopeful, and more so further out
    law = fit_law(kinked, TRUE.E)
    n, d = law.optimum(4.8e12)
    truth = TRUE.loss(n, d) + 0.01 * np.log(80) - TRUE.E
    promised = law.loss(n, d) - TRUE.E
    assert abs(promised / truth - 1) < 2 * spread_at(wrong, 10)
    assert max(each.loss(n, d) - TRUE.E for each in resampled(kinked, law, TRUE.E, 30)) < truth


def test_a_fit_finds_the_law_that_made_the_runs() -> None:
    for entropy in (TRUE.E, None):
        law = fit_law(made(TRUE), entropy)
        assert (law.E, law.alpha, law.beta, law.a) == pytest.approx((TRUE.E, TRUE.alpha, TRUE.beta, TRUE.a), rel=2e-3)
        assert law.loss(1e6, 1e8) == pytest.approx(TRUE.loss(1e6, 1e8), rel=1e-4)


def test_one_run_that_failed_hardly_bends_the_law() -> None:
    runs = made(TRUE, 0.001)
    runs.losses[7] *= 2
    assert fit_law(runs, TRUE.E).a == pytest.approx(TRUE.a, abs=0.02)
