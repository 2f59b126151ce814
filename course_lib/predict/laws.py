"""Scaling laws: the loss of a model of N parameters after D tokens, fitted to runs, and the best N and D for a budget.

    law = fit_law(Runs(parameters, tokens, losses), entropy=1.365)
    law.loss(*law.optimum(4.8e12)), spread_at(left_out(runs, budgets, 1.365), times=10)

Losses are nats per token, budgets FLOPs, C = 6·N·D. SciPy minimizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from course_lib.predict.setup import positive

Array = NDArray[np.float64]


class Runs(NamedTuple):
    """Finished runs: the same place of each array is one run."""

    parameters: Array
    tokens: Array
    losses: Array

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.int_]) -> Runs:
        """The runs that a mask or a list of places chooses."""
        return Runs(*(each[chosen] for each in self))


@dataclass(frozen=True)
class ScalingLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, eq. 2).

    Attributes:
        E: the entropy of the text in nats per token, which no model goes below.
        A: with `alpha`, the loss that a model of N parameters has for being small.
        B: with `beta`, the loss that D tokens leave for being few.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """Nats per token, for numbers or for arrays."""
        return self.E + self.A * parameters**-self.alpha + self.B * tokens**-self.beta

    @property
    def a(self) -> float:
        """The exponent of the best model's size: N grows as C^a, D as C^(1-a)."""
        return self.beta / (self.alpha + self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """N and D of least loss for a budget: N = G·(C/6)^a, D = (C/6)/N, with G = (alpha·A / beta·B)^(1/(alpha+beta)).

        There a further FLOP lowers both terms equally. Source: Hoffmann et al. 2022, eq. 4.
        """
        positive(flops=flops)
        g = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        parameters = g * (flops / 6) ** self.a
        return parameters, flops / 6 / parameters


CHINCHILLA = ScalingLaw(1.69, 406.4, 410.7, 0.34, 0.28)
"""Hoffmann et al. 2022, eq. 10: as printed, rounded."""
CHINCHILLA_UNROUNDED = ScalingLaw(1.6934, 406.40, 410.73, 0.33917, 0.28491)
"""The same in the TeX source of the paper, where Besiroglu et al. 2024 read it."""
EPOCH = ScalingLaw(1.8172, 482.01, 2085.43, 0.3478, 0.3658)
"""Besiroglu et al. 2024: the refit of 240 of the paper's runs."""


def huber(parameters: Array, runs: Runs, entropy: float | None = None, delta: float = 1e-3) -> tuple[float, Array]:
    """Sum over runs of Huber's loss of log(predicted / measured loss), and its gradient.

    Within `delta` a square, beyond it a line, so that a run that failed pulls no harder than any other.
    `parameters`: log A, log B, alpha, beta, and log E if no `entropy` is given. Source: Hoffmann et al. 2022, eq. 3.
    """
    log_n, log_d = np.log(runs.parameters), np.log(runs.tokens)
    log_e = np.log(entropy) if entropy is not None else parameters[4]
    terms = np.stack([parameters[0] - parameters[2] * log_n, parameters[1] - parameters[3] * log_d, log_e + 0 * log_n])
    largest = terms.max(0)
    predicted = largest + np.log(np.exp(terms - largest).sum(0))
    off = predicted - np.log(runs.losses)
    each = np.where(abs(off) <= delta, off**2 / 2, delta * (abs(off) - delta / 2))
    shares = np.exp(terms - predicted) * np.clip(off, -delta, delta)  # d(sum) / d(term)
    slopes = [shares[0].sum(), shares[1].sum(), -(shares[0] * log_n).sum(), -(shares[1] * log_d).sum(), shares[2].sum()]
    return float(each.sum()), np.array(slopes[: len(parameters)])


_STARTS = [(a, b, alpha, beta) for a, b in ((2, 4), (6, 6)) for alpha in (0.3, 0.5) for beta in (0.3, 0.5)]


def fit_law(runs: Runs, entropy: float | None = None, start: ScalingLaw | None = None) -> ScalingLaw:
    """The law of the least `huber`, by SciPy's BFGS from several starts, or from `start` alone.

    E is `entropy`, or else a fifth coefficient.

    Raises:
        ValueError: fewer runs than coefficients.
    """
    from scipy.optimize import minimize  # here, so that other lessons do not wait for SciPy

    count = 4 if entropy is not None else 5
    if len(runs.losses) < count:
        raise ValueError(f"{len(runs.losses)} runs for {count} coefficients: give more runs, or the entropy")
    starts = [(*each, np.log(0.8 * runs.losses.min())) for each in _STARTS]
    if start:
        starts = [(np.log(start.A), np.log(start.B), start.alpha, start.beta, np.log(start.E))]
    found = [
        minimize(huber, each[:count], (runs, entropy), method="BFGS", jac=True, options={"gtol": 1e-8})
        for each in starts
    ]
    best = min(found, key=lambda each: each.fun).x
    E = entropy if entropy is not None else float(np.exp(best[4]))
    return ScalingLaw(E, float(np.exp(best[0])), float(np.exp(best[1])), float(best[2]), float(best[3]))


def resampled(runs: Runs, law: ScalingLaw, entropy: float | None, times: int, seed: int = 0) -> list[ScalingLaw]:
    """Fits to `times` draws of as many runs with replacement (the bootstrap): how far the noise of runs moves a fit.

    The law's form stays, so the bootstrap is blind to a wrong form.
    """
    draws = np.random.default_rng(seed).integers(0, len(runs.losses), (times, len(runs.losses)))
    return [fit_law(runs.where(chosen), entropy, start=law) for chosen in draws]


class LeftOut(NamedTuple):
    """Runs of one budget, predicted by a fit to smaller ones."""

    times: float  # their budget over the largest one that the fit has seen
    error: float  # (predicted - measured) / (measured - entropy), the mean over these runs


def left_out(runs: Runs, budgets: Array, entropy: float) -> list[LeftOut]:
    """Errors of the law, extrapolated to budgets that its fit has not seen, wherever eight runs or more remain.

    `budgets` are FLOPs, the same number for runs that belong together; a loss above `entropy`, E, is the excess.
    """
    errors = []
    for largest in np.unique(budgets):
        seen = budgets <= largest
        if seen.sum() < 8:
            continue
        law = fit_law(runs.where(seen), entropy)
        for budget in np.unique(budgets[~seen]):
            parameters, tokens, losses = runs.where(budgets == budget)
            off = (law.loss(parameters, tokens) - losses) / (losses - entropy)
            errors.append(LeftOut(float(budget / largest), float(off.mean())))
    return errors


def spread_at(errors: Sequence[LeftOut], times: float) -> float:
    """Relative error of the excess to expect (one standard deviation) `times` beyond the largest budget.

    Errors are taken to grow with the logarithm of the distance: twice as many doublings, twice the error.
    """
    if times <= 1 or not errors:
        raise ValueError(f"{len(errors)} errors, times={times}: give some errors, and a factor above 1")
    a_doubling = [each.error / np.log2(each.times) for each in errors]
    return float(np.sqrt(np.mean(np.square(a_doubling))) * np.log2(times))
