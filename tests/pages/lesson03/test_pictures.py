"""Pictures of recompute: what is drawn are the predictions' own numbers, and each picture is told in words."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from course_kit.units import Bytes
from course_lib.predict.chain import Chain
from course_pages.lesson03 import pictures as figures

MIB = 2**20
CHAIN = Chain(6, boundary_bytes=MIB, saved_bytes=2 * MIB)
COSTS = [(MIB, 3 * MIB, 2_000_000), (2 * MIB, 2 * MIB, 5_000_000), (MIB, 6 * MIB, 1_000_000)]


@pytest.mark.parametrize("every", [None, 1, 2, 4, 6])
def test_the_bars_are_the_frames(every):
    lives, held = figures.chain_film(CHAIN, every, caption="c", alt="a").figure.axes
    frames = CHAIN.film(every)
    boundaries, together = (
        [bar.get_height() for bar in group]  # type: ignore[attr-defined]
        for group in held.containers
    )
    assert boundaries == [frame.boundaries for frame in frames]
    assert together == [frame.held / MIB for frame in frames]
    inside = [
        p.get_height()
        for p in lives.patches
        if isinstance(p, Rectangle) and p.get_facecolor() == to_rgba(figures.INSIDE)
    ]
    assert inside == [frame.inside for frame in frames if frame.inside]


def test_the_peaks_are_drawn_in_mib():
    predicted = {k: CHAIN.peak(k) for k in range(1, 7)}
    picture = figures.peak_for_every_k(predicted, predicted, predicted, CHAIN.peak(None), caption="c")
    (axes,) = picture.figure.axes
    assert [list(line.get_ydata()) for line in axes.lines[:3]] == [[p / MIB for p in predicted.values()]] * 3  # type: ignore[arg-type]


def test_break_even_is_a_line_and_a_word():
    figure = figures.swap_or_recompute({"scores": 100, "MLP": 10_000}, {"a GPU": 8000}, caption="c").figure
    (dots,) = figure.axes[0].collections
    assert [tuple(dot) for dot in dots.get_offsets().tolist()] == [(100, 0), (10_000, 1)]  # type: ignore[union-attr]
    assert figure.axes[0].get_xscale() == "log"
    assert list(figure.axes[0].lines[0].get_xdata()) == [8000, 8000]  # type: ignore[arg-type]
    assert figure.legends[0].get_texts()[0].get_text() == "a GPU: 8,000"


def test_bars_of_a_plan_are_its_costs():
    saved, flops = figures.chain_with_plan(COSTS, [(0, 2)], caption="c").figure.axes
    heights = [[bar.get_height() for bar in group] for group in saved.containers]  # type: ignore[attr-defined]
    assert heights == [[1, 2, 1], [2, 0, 5]]
    assert [bar.get_height() for bar in flops.containers[0]] == [2, 5, 1]  # type: ignore[attr-defined]


def test_a_segment_is_a_shade_behind_its_bars():
    for axes in figures.chain_with_plan(COSTS, [(0, 2)], caption="c").figure.axes:
        (shade,) = [patch for patch in axes.patches if patch.get_alpha() == 0.22]
        box = shade.get_extents().transformed(axes.transData.inverted())
        assert (box.x0, box.x1) == (pytest.approx(-0.46), pytest.approx(1.46))


def test_lines_against_a_limit_are_in_mib():
    held = {"plain": np.array([0, 4 * MIB]), "plan": np.array([MIB])}
    (axes,) = figures.held_against_limit(held, Bytes(2 * MIB), caption="c").figure.axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[0, 4], [1], [2, 2]]  # type: ignore[arg-type]
