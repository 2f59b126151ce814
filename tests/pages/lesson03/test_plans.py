"""Pictures of plans: the bars are the costs, the shades are the segments, and each picture is told in words."""

from __future__ import annotations

import numpy as np
import pytest

from course_kit.units import Bytes
from course_pages.lesson03 import plans as plans

MIB = 2**20
COSTS = [(MIB, 3 * MIB, 2_000_000), (2 * MIB, 2 * MIB, 5_000_000), (MIB, 6 * MIB, 1_000_000)]


def test_the_bars_are_the_costs():
    saved, flops = plans.chain_with_plan(COSTS, [(0, 2)], caption="c").figure.axes
    heights = [[bar.get_height() for bar in group] for group in saved.containers]  # type: ignore[attr-defined]
    assert heights == [[1, 2, 1], [2, 0, 5]]
    assert [bar.get_height() for bar in flops.containers[0]] == [2, 5, 1]  # type: ignore[attr-defined]


def test_a_segment_is_a_shade_behind_its_bars():
    for axes in plans.chain_with_plan(COSTS, [(0, 2)], caption="c").figure.axes:
        (shade,) = [patch for patch in axes.patches if patch.get_alpha() == 0.22]
        box = shade.get_extents().transformed(axes.transData.inverted())
        assert (box.x0, box.x1) == (pytest.approx(-0.46), pytest.approx(1.46))


def test_lines_are_in_mib_with_the_limit():
    held = {"plain": np.array([0, 4 * MIB]), "plan": np.array([MIB])}
    (axes,) = plans.held_against_limit(held, Bytes(2 * MIB), caption="c").figure.axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[0, 4], [1], [2, 2]]  # type: ignore[arg-type]


def test_each_picture_has_caption_and_words():
    chain = plans.chain_with_plan(COSTS, [(0, 2)], caption="c")
    held = plans.held_against_limit({"plain": np.array([0, 4 * MIB])}, Bytes(2 * MIB), caption="c")
    assert chain.caption == held.caption == "c"
    assert "Recomputed segments: 0 to 1." in chain.alt and "peak 4.00 MiB" in held.alt
