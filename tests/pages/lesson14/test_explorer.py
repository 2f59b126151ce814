"""The bowl explorer: its fits, its bottoms, its sentence and its picture, without a browser."""

from __future__ import annotations

import numpy as np
import pytest

from course_pages.lesson14 import grid
from course_pages.lesson14.explorer import FITS, TIMES, bowl, bowls_table, fit_of


@pytest.mark.parametrize("name", FITS)
def test_a_bottom_is_the_least_of_its_curve_and_within_its_band(name: str) -> None:
    for times in TIMES:
        here = bowl(name, times)
        n, d, loss = here["best"]
        assert 6 * n * d == pytest.approx(here["flops"]) and loss <= min(here["loss"]) + 1e-3
        assert np.argmin(here["loss"]) in (19, 20, 21)
        assert all(low <= mid <= high for low, mid, high in zip(here["low"], here["loss"], here["high"], strict=True))


def test_a_band_grows_beyond_what_fits_have_seen() -> None:
    width = [max(np.subtract(here["high"], here["low"])) for here in bowls_table()["this page's runs"]]
    assert width[0] < width[-1]


def test_five_runs_that_failed_move_gophers_optimum() -> None:
    ratios = [bowl(name, 96_000)["best"] for name in FITS[3:]]
    assert [d / n for n, d, _ in ratios] == pytest.approx([17.9, 6.8], rel=0.02)


def test_runs_of_a_budget_are_the_grids() -> None:
    here = bowl(FITS[0], 16)
    losses = {
        round(grid.stored()["runs"][grid.key(grid.Job(width, 4.8e11))]["loss"], 4) for width in grid.WIDTHS[4.8e11]
    }
    assert {loss for _, loss in here["runs"]} <= losses and len(here["runs"]) >= 5


def test_counting_without_embeddings_makes_models_smaller_and_the_exponent_larger() -> None:
    whole, blocks = (fit_of(name) for name in FITS[:2])
    assert (blocks.runs.parameters < whole.runs.parameters).all() and blocks.laws[0].a > whole.laws[0].a
