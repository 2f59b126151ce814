"""Answers to lesson 14's turns."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

from course_lib.predict.laws import CHINCHILLA
from course_pages.lesson14 import turns
from tests.pages.answers import Answers


def by_scipy(a, b, alpha, beta, e, log_n, log_d):
    return logsumexp(np.stack([a - alpha * log_n, b - beta * log_d, e + 0 * log_n]), axis=0)


def by_pairs(a, b, alpha, beta, e, log_n, log_d):
    return np.logaddexp(np.logaddexp(a - alpha * log_n, b - beta * log_d), e)


def plain_exp(a, b, alpha, beta, e, log_n, log_d):
    with np.errstate(all="ignore"):
        return np.log(np.exp(a - alpha * log_n) + np.exp(b - beta * log_d) + np.exp(e))


def without_entropy(a, b, alpha, beta, e, log_n, log_d):
    return np.logaddexp(a - alpha * log_n, b - beta * log_d)


def exponents_swapped(a, b, alpha, beta, e, log_n, log_d):
    return by_pairs(a, b, beta, alpha, e, log_n, log_d)


def the_largest_alone(a, b, alpha, beta, e, log_n, log_d):
    return np.maximum(np.maximum(a - alpha * log_n, b - beta * log_d), e)


def the_smallest_pulled_out(a, b, alpha, beta, e, log_n, log_d):
    terms = np.stack([a - alpha * log_n, b - beta * log_d, e + 0 * log_n])
    with np.errstate(all="ignore"):
        return terms.min(0) + np.log(np.exp(terms - terms.min(0)).sum(0))


def largest_of_all_runs(a, b, alpha, beta, e, log_n, log_d):
    terms = np.stack([a - alpha * log_n, b - beta * log_d, e + 0 * log_n])
    with np.errstate(all="ignore"):
        return terms.max() + np.log(np.exp(terms - terms.max()).sum(0))


def one_number(a, b, alpha, beta, e, log_n, log_d):
    return np.mean(by_pairs(a, b, alpha, beta, e, log_n, log_d))


def vertex_by_hand(parameters, losses):
    x = np.log(parameters)
    design = np.stack([x**2, x, np.ones_like(x)], 1)
    square, line, _ = np.linalg.lstsq(design, losses, rcond=None)[0]
    return math.exp(-line / 2 / square)


def vertex_by_derivative(parameters, losses):
    bowl = np.polynomial.Polynomial.fit(np.log10(parameters), losses, 2)
    return 10 ** bowl.deriv().roots()[0]


def in_plain_parameters(parameters, losses):
    square, line, _ = np.polyfit(parameters / parameters[0], losses, 2)
    return -line / (2 * square) * parameters[0]


def above_the_least(parameters, losses):
    losses -= losses.min()
    return vertex_by_hand(parameters, losses)


def of_the_scaled_polynomial(parameters, losses):
    _, line, square = np.polynomial.Polynomial.fit(np.log(parameters), losses, 2).coef
    return np.exp(-line / 2 / square)


def through_higher_powers(parameters, losses):
    x = np.log(parameters)
    grid = np.linspace(x[0], x[-1], 100_001)
    return np.exp(grid[np.polyval(np.polyfit(x, losses, min(4, len(x) - 1)), grid).argmin()])


def over_log_losses(parameters, losses):
    return vertex_by_hand(parameters, np.log(losses))


def best_run(parameters, losses):
    return parameters[np.argmin(losses)]


def log_of_it(parameters, losses):
    return math.log(vertex_by_hand(parameters, losses))


def through_the_lowest_three(parameters, losses):
    middle = min(max(int(np.argmin(losses)), 1), len(losses) - 2)
    return vertex_by_hand(parameters[middle - 1 : middle + 2], losses[middle - 1 : middle + 2])


def in_an_array(parameters, losses):
    return np.exp(np.polynomial.Polynomial.fit(np.log(parameters), losses, 2).deriv().roots())


def by_bisection(law, flops):
    low, high = 1.0, flops
    for _ in range(200):
        n = math.sqrt(low * high)
        d = flops / 6 / n
        more = law.alpha * law.A * n**-law.alpha > law.beta * law.B * d**-law.beta
        low, high = (n, high) if more else (low, n)
    return n, d


def whole_numbers(law, flops):
    n, d = by_bisection(law, flops)
    return round(n), round(d)


def numbers_in_arrays(law, flops):
    n, d = by_bisection(law, flops)
    return np.array([n]), np.array([d])


def twenty_tokens(law, flops):
    n = math.sqrt(flops / 120)
    return n, 20 * n


def forgot_the_six(law, flops):
    g = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))
    n = g * flops ** (law.beta / (law.alpha + law.beta))
    return n, flops / n


def exponent_of_tokens(law, flops):
    g = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))
    n = g * (flops / 6) ** (law.alpha / (law.alpha + law.beta))
    return n, flops / 6 / n


def without_the_exponents(law, flops):
    n = (law.A / law.B) ** (1 / (law.alpha + law.beta)) * (flops / 6) ** (law.beta / (law.alpha + law.beta))
    return n, flops / 6 / n


def chinchilla_s_own(law, flops):
    return by_bisection(CHINCHILLA, flops)


def worth_in_steps(tokens, different, half_life):
    if tokens <= different:
        return tokens
    return different - different * half_life * math.expm1((1 - tokens / different) / half_life)


def epochs_for_repetitions(tokens, different, half_life):
    return different * (1 + half_life * (1 - math.exp(-tokens / different / half_life)))


def whole_epochs_alone(tokens, different, half_life):
    return worth_in_steps(tokens // different * different or tokens, different, half_life)


def all_worth_a_token(tokens, different, half_life):
    return tokens


def half_life_is_ignored(tokens, different, half_life):
    return worth_in_steps(tokens, different, 15.39)


ANSWERS = {
    turns.check_log_loss: Answers(
        right=[by_scipy, by_pairs],
        wrong={
            plain_exp: "an exp over",
            the_smallest_pulled_out: "an exp over",
            largest_of_all_runs: "an exp over",
            without_entropy: "add up by hand",
            exponents_swapped: "add up by hand",
            the_largest_alone: "add up by hand",
            one_number: "a shape of",
        },
    ),
    turns.check_bottom: Answers(
        right=[vertex_by_hand, vertex_by_derivative],
        wrong={
            in_plain_parameters: "has less",
            over_log_losses: "a loss of 2.0000004; another one has less",
            above_the_least: "read-only",
            of_the_scaled_polynomial: "has less",
            through_higher_powers: "all of them",
            best_run: "has less",
            log_of_it: "has less",
            through_the_lowest_three: "all of them",
            in_an_array: "take the number out",
        },
    ),
    turns.check_best: Answers(
        right=[by_bisection, whole_numbers],
        wrong={
            numbers_in_arrays: "take the numbers out",
            chinchilla_s_own: "lose less",
            twenty_tokens: "lose less",
            forgot_the_six: "6·N·D of what came",
            exponent_of_tokens: "lose less",
            without_the_exponents: "lose less",
        },
    ),
    turns.check_worth: Answers(
        right=[worth_in_steps],
        wrong={
            epochs_for_repetitions: "each is worth a token",
            whole_epochs_alone: "1.5 times",
            all_worth_a_token: "R counts repetitions",
            half_life_is_ignored: "R* = 4.0",
        },
    ),
}
