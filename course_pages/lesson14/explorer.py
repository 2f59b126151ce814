"""The bowl: for a budget, the loss of each way to share it between parameters and tokens, by one of five fits."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import Picture
from course_lib.predict.laws import Array, Runs, ScalingLaw, fit_law
from course_pages.lesson14 import grid, pictures
from course_pages.lesson14.published import chinchilla

FITS = ("this page's runs", "without embeddings", "read early", "Chinchilla, 240 runs", "Chinchilla, all 245")
TIMES = (1, 2, 4, 8, 16, 160, 1600, 96_000)
"""Budgets, as multiples of the smallest one. 96,000 times Chinchilla's smallest is Gopher's."""


class Fit(NamedTuple):
    """Runs, their budgets, the smallest budget, and laws: of all runs, and of those without the largest budgets."""

    runs: Runs
    budgets: Array
    first: float
    laws: list[ScalingLaw]


@cache
def fit_of(name: str) -> Fit:
    """The fit of this name in `FITS`."""
    entropy = None
    if "Chinchilla" in name:
        runs, first = chinchilla(), 6e18
        runs = runs if "all" in name else runs.where(runs.losses < 3.447)  # five failed: Besiroglu et al. 2024
    else:
        entropy, first = grid.judge()[2], 3e10
        runs = grid.read_early() if "early" in name else grid.as_runs(grid.THE_GRID, "without" not in name)
    budgets = 6 * runs.parameters * runs.tokens
    seen = [runs.where(budgets <= budgets.max() / less) for less in (1, 1.5, 3, 6)]
    return Fit(runs, budgets, first, [fit_law(each, entropy) for each in seen if len(each.losses) >= 8])


def bowl(name: str, times: int) -> dict[str, Any]:
    """Numbers of the picture at one place of the controls.

    Returns:
        "x": log10 of the smallest and the largest N; "loss", "low", "high" at 41 sizes between; "runs", [log10 N, loss]
        of those with about this budget; "best", N, D and loss at the bottom; "flops".
    """
    runs, budgets, first, laws = fit_of(name)
    flops, law = first * times, laws[0]
    best = law.optimum(flops)
    x = np.linspace(np.log10(best[0]) - 0.75, np.log10(best[0]) + 0.75, 41)
    curves = np.array([each.loss(10**x, flops / 6 / 10**x) for each in laws])
    near = (abs(np.log(budgets / flops)) < 0.2) & (abs(np.log10(runs.parameters / best[0])) < 0.75)
    at = [[round(float(np.log10(n)), 3), round(float(loss), 4)] for n, _, loss in zip(*runs.where(near), strict=True)]
    drawn = {"loss": curves[0], "low": curves.min(0), "high": curves.max(0)}
    ends = [round(float(x[0]), 3), round(float(x[-1]), 3)]
    return {"x": ends, "runs": at, "best": [*best, law.loss(*best)], "flops": flops} | {
        key: [round(float(each), 4) for each in value] for key, value in drawn.items()
    }


@cache
def bowls_table() -> dict[str, Any]:
    """Fit → a bowl for each of `TIMES`."""
    return {name: [bowl(name, times) for times in TIMES] for name in FITS}


class BowlExplorer(Explorer):
    """Loss against parameters for one budget, with the band between fits that leave out the largest budgets.

        BowlExplorer(fit="Chinchilla, 240 runs", times=96_000).show()    # Gopher's budget

    Args:
        fit: one of `FITS`.
        times: the budget, one of `TIMES`.
    """

    caption = (
        "Too small at the left, too little text at the right. How far does the bottom move when the fit changes? "
        "The band: fits without the largest budgets."
    )
    fit = Control("Fitted on", FITS, kind="choice")
    times = Control("Budget, in the smallest one's", TIMES, 16, lambda times: f"{times:,} ×")
    _table = staticmethod(bowls_table)

    @property
    def bowl(self) -> dict[str, Any]:
        """Numbers of the picture, as `bowl` returns them."""
        return bowls_table()[self.fit][TIMES.index(self.times)]

    def _picture(self, *, caption: str, alt: str) -> Picture:
        return pictures.one_bowl(self.bowl, caption=caption, alt=alt)

    def _told(self) -> str:
        parameters, tokens, loss = self.bowl["best"]
        return (
            f"{self.fit}, {self.bowl['flops']:.3g} FLOPs: the least loss is {loss:.3f} nats, at {parameters:,.3g} "
            f"parameters and {tokens:,.3g} tokens, {tokens / parameters:.1f} tokens a parameter."
        )
