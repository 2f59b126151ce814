"""Checks of lesson 14's turns: the law in logs, the bottom of a bowl, the best split of a budget, and repeated text."""

from __future__ import annotations

import numpy as np

from course_kit.notebook.your_turn import Function
from course_lib.predict.laws import CHINCHILLA, EPOCH, ScalingLaw

EXERCISES = (1e24 / 120) ** 0.5 / 1e9, 16 ** (0.25 / 0.75), 0.05 * 1.4e12 / 10e9
"""Answers to the exercises: billions of parameters, a factor, epochs."""


def check_log_loss(log_loss: Function) -> None:
    """Values for numbers and for arrays; terms so far apart, or so large, that a plain exp gives 0 or infinity."""
    for law in (CHINCHILLA, ScalingLaw(1.2, 30.0, 900.0, 0.5, 0.4)):
        logs = np.log(law.A), np.log(law.B), law.alpha, law.beta, np.log(law.E)
        for n, d in ((1e6, 1e9), (7e10, 1.4e12), (np.array([1e5, 1e7]), np.array([1e8, 1e6]))):
            came, due = np.asarray(log_loss(*logs, np.log(n), np.log(d))), np.log(law.loss(n, d))
            assert came.shape == np.shape(due), f"for {np.shape(due)} runs came a shape of {came.shape}"
            assert np.allclose(came, due, rtol=1e-9), (
                f"N = {n}, D = {d}: exp of what came is a loss of {np.exp(came)}; put E, A, B back and add up by hand"
            )
    here = {"log_a": 6.0, "log_b": 6.0, "alpha": 0.3, "beta": 0.3, "log_e": 0.5}
    n, d = np.log([1e6, 1.0]), np.log([1e8, 1e8])
    for moved in ("log_a log_b log_e", *here):  # BFGS tries such places on its way
        for up in (-800, 800):
            a, b, alpha, beta, e = (value + up * (name in moved.split()) for name, value in here.items())
            came, due = log_loss(a, b, alpha, beta, e, n, d), np.logaddexp(np.logaddexp(a - alpha * n, b - beta * d), e)
            assert np.allclose(came, due, rtol=1e-9), (
                f"{moved} moved by {up:+}: {came} came, so an exp over- or underflows"
            )


def check_bottom(bottom: Function) -> None:
    """A parabola with a known bottom that is not at a run, in any units of N, among few and many runs; and noise."""
    for center, span, count in ((2e4, 4.0, 5), (7e10, 30.0, 9), (3e7, 2.0, 3)):
        n = center * 1.3 * np.geomspace(1 / span, span, count)
        losses = 2.0 + 0.05 * np.log(n / center) ** 2
        n.flags.writeable = losses.flags.writeable = False  # runs of the reader's
        came = bottom(n, losses)
        assert np.ndim(came) == 0, f"an array of shape {np.shape(came)} came; take the number out of it"
        came = float(came)
        assert np.isclose(came, center, rtol=1e-4), (
            f"{count} runs of {n[0]:.3g} to {n[-1]:.3g} parameters: {came:.4g} came, and such a model has a loss of "
            f"{2 + 0.05 * np.log(abs(came) / center) ** 2:.7f}; another one has less"
        )
    n = np.geomspace(1e4, 1e6, 7)
    wobbling = 2.0 + 0.05 * np.log(n / 1e5) ** 2 + 0.01 * np.array([1, -1, 1, 1, -1, -1, 1])
    square, line, _ = np.linalg.lstsq(np.vander(np.log(n / 1e5), 3), wobbling, rcond=None)[0]
    came, due = float(bottom(n, wobbling)), 1e5 * np.exp(-line / (2 * square))
    assert np.isclose(came, due, rtol=1e-4), (
        f"7 runs with luck in their losses: {came:.4g} came; a parabola through all of them is lowest at {due:.4g}"
    )


def check_best(best: Function) -> None:
    """N and D spend the budget, and no neighbour on the same budget has less loss."""
    for law in (CHINCHILLA, EPOCH, ScalingLaw(1.4, 10.0, 50.0, 0.42, 0.36)):
        for flops in (1e12, 5.76e23):
            n, d = best(law, flops)
            shapes = np.shape(n), np.shape(d)
            assert shapes == ((), ()), f"arrays of shapes {shapes} came; take the numbers out of them"
            assert np.isclose(6 * n * d, flops, rtol=1e-4), f"{flops:.6g} FLOPs: 6·N·D of what came is {6 * n * d:.9g}"
            least = law.loss(n, d)
            for step in (0.999, 1.001):
                assert law.loss(n * step, d / step) >= least, (
                    f"{law}, {flops:.3g} FLOPs: {step:g} times these {n:.4g} parameters, for the same FLOPs, lose less"
                )


def check_worth(worth: Function) -> None:
    """Fresh text, text that comes twice, text that comes again for ever, and another R*."""
    assert np.isclose(worth(3e9, 1e12, 15.39), 3e9), "3e9 tokens of 1e12 are all new, and each is worth a token"
    assert np.isclose(worth(1e9, 1e9, 15.39), 1e9), "1e9 tokens of 1e9 are all new, and each is worth a token"
    for half in (15.39, 4.0):
        for times in (1.5, 2, 5, 40):
            came, due = worth(times * 1e9, 1e9, half), 1e9 * (1 + half * (1 - np.exp(-(times - 1) / half)))
            assert np.isclose(came, due), (
                f"1e9 tokens, {times} times, R* = {half}: a worth of {came:.4g} came; R counts repetitions, not epochs"
            )
        assert worth(1e13, 1e9, half) <= 1e9 * (1 + half) * 1.0001, (
            "no number of repetitions is worth more than 1 + R* times"
        )
