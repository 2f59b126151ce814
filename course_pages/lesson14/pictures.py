"""Pictures of budgets: bowls, and the line of their bottoms with its promise further out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

import numpy as np
from matplotlib.ticker import NullLocator

from course_kit.notebook.picture import INK, MUTED, Picture, legend, line_look, new_figure, note, series_color
from course_lib.predict.laws import Array, Runs, ScalingLaw


def bowls(runs: Runs, budgets: Array, law: ScalingLaw, *, caption: str) -> Picture:
    """Loss against parameters, a colour for each budget: points are runs, lines the law, crosses its optimum."""
    figure, (axes,) = new_figure(height=3.4)
    told = []
    for number, budget in enumerate(np.unique(budgets)):
        n, _, losses = runs.where(budgets == budget)
        sizes = np.geomspace(n.min() / 1.3, n.max() * 1.3, 60)
        axes.plot(n, losses, "o", color=series_color(number), ms=4.5)
        power = int(log10(budget))
        words = rf"${budget / 10**power:g} \cdot 10^{{{power}}}$ FLOPs"
        axes.plot(sizes, law.loss(sizes, budget / 6 / sizes), color=series_color(number), lw=1.3, label=words)
        best = law.optimum(budget)
        axes.plot(best[0], law.loss(*best), "x", color=INK, ms=7)
        told.append(f"{budget:.1e} FLOPs: {best[0]:,.0f} parameters, {law.loss(*best):.2f} nats")
    axes.set(xscale="log", xlabel="parameters N", ylabel="loss (nats per byte)")
    legend(figure, "right center", 1)
    alt = f"Bowls of loss against parameters. Bottoms by the law: {'; '.join(told)}."
    return Picture(figure, caption=caption, alt=alt)


def ahead(
    law: ScalingLaw, seen: Mapping[float, float], spread: Mapping[float, float], then: Sequence[float], *, caption: str
) -> Picture:
    """Excess over the ideal reader against the budget, with the band of the prediction and the measured run.

    Args:
        law: the law fitted to the grid; its E is the ideal reader's loss.
        seen: budget → least loss of the grid's runs.
        spread: budget → relative error of the excess to expect, two standard deviations.
        then: budget, predicted loss and measured loss of the larger run.
    """
    figure, (axes,) = new_figure(height=3.2)
    budgets = np.geomspace(min(seen), then[0] * 1.2, 60)
    best = np.array([law.loss(*law.optimum(each)) for each in budgets]) - law.E
    axes.plot(budgets, best, label="the law, at its optimum", **line_look(0))
    at = np.array(list(spread))
    curve = np.array([law.loss(*law.optimum(each)) - law.E for each in at])
    off = curve * np.array(list(spread.values()))
    axes.fill_between(at, curve - off, curve + off, color=series_color(0), alpha=0.2, lw=0, label="interval")
    axes.plot(list(seen), np.array(list(seen.values())) - law.E, "o", color=INK, ms=5, label="best run of the grid")
    axes.plot(then[0], then[2] - law.E, "D", color=series_color(3), ms=7, label="the run ten times larger")
    axes.set(xscale="log", yscale="log", xlabel="budget C (FLOPs)", ylabel="excess (nats per byte)")
    ticks = [0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    legend(figure, "upper center", 2)
    due, came = then[1] - law.E, then[2] - law.E
    said = f"At {then[0]:.1e} FLOPs the law says {due:.3f} nats of excess, the run has {came:.3f}."
    return Picture(figure, caption=caption, alt=f"Excess against budget, falling on a nearly straight line. {said}")


def one_bowl(bowl: Mapping[str, Any], *, caption: str, alt: str) -> Picture:
    """The explorer's bowl: the law's curve, the band between fits, runs of about this budget, and the bottom."""
    figure, (axes,) = new_figure(height=3.0)
    sizes = 10 ** np.linspace(bowl["x"][0], bowl["x"][1], len(bowl["loss"]))
    axes.fill_between(sizes, bowl["low"], bowl["high"], color=series_color(0), alpha=0.2, lw=0, label="between fits")
    axes.plot(sizes, bowl["loss"], label="the fitted law", **line_look(0))
    if bowl["runs"]:
        logs, losses = zip(*bowl["runs"], strict=True)
        axes.plot(10 ** np.array(logs), losses, "o", color=series_color(1), ms=5, label="runs of about this budget")
    axes.axvline(bowl["best"][0], color=MUTED, ls="--", lw=1.2)
    note(axes, "least loss", (bowl["best"][0], max(bowl["loss"])), (5, -10))
    axes.set(xscale="log", xlabel="parameters N", ylabel="loss (nats)")
    legend(figure, "upper center", 3)
    return Picture(figure, caption=caption, alt=alt)
