"""The map of layouts: its cells are the planner's, its dots the published runs, its words what it shows."""

from __future__ import annotations

import numpy as np
import pytest

from course_lib.model import zoo
from course_lib.predict.planner import Constants, fitted
from course_lib.predict.setup import Setup
from course_pages.lesson17 import truth
from course_pages.lesson17.explorer import BATCH, RUNS, SEQ, SHAPES, MapExplorer, cells, published, room


def test_a_cell_costs_what_the_truth_table_predicts_for_the_same_run() -> None:
    runs, constants = truth.read()["H100 nanotron"], Constants(**fitted()["H100 nanotron"]["constants"])
    seconds, least, each = (
        truth.step_seconds(runs, constants),
        truth.least_gigabytes(runs, constants),
        runs.work.layouts,
    )
    compared = 0
    for name, (model, gpus) in RUNS.items():
        for n in np.flatnonzero((runs.model == model) & (runs.gpus == gpus) & ~runs.illegal):
            shown = cells(name, "H100", int(each.zero[n]), int(each.micro_batch[n]), False)
            if cell := shown.get((int(each.tensor[n]), int(each.pipeline[n]))):
                assert cell.step == pytest.approx(seconds[n], rel=1e-6), truth.describe(runs, int(n))
                assert cell.gb == pytest.approx(least[n], rel=1e-6), truth.describe(runs, int(n))
                compared += 1
    assert compared > 100


def test_the_hatched_cells_of_the_page_are_the_runs_that_died() -> None:
    shown, dots = cells("8B on 8", "H100", 0, 1, False), published("8B on 8", 0, 1)
    assert {place for place in dots if shown[place].gb > room("H100")} == {
        p for p, each in dots.items() if each[0] is None
    }
    assert len(dots) == 9


def test_answers_to_the_pages_questions() -> None:
    bottom = [cells("8B on 8", "H100", 0, 1, False)[t, 1] for t in (1, 2, 4, 8)]
    assert [each.launches for each in bottom] == [False, False, False, True] and bottom[3].step > 1.5 * bottom[2].step
    before, after = (
        {place for place, each in cells("8B on 8", "H100", zero, 1, False).items() if each.gb <= room("H100")}
        for zero in (0, 1)
    )
    legal = cells("8B on 8", "H100", 1, 1, False)
    assert (len(after - before), len(cells("8B on 8", "H100", 0, 1, False).keys() - legal.keys())) == (2, 4)
    hatched = {place for place, each in legal.items() if each.gb > room("H100")}
    assert {place for place, dot in published("8B on 8", 1, 1).items() if place in hatched and dot[0]} == {(1, 2)}
    held = published("8B on 8", 1, 1)[1, 2][1]
    assert held and legal[1, 2].gb == pytest.approx(1.1 * held, rel=0.02)
    fits = lambda zero, full: sum(e.gb <= room("H100") for e in cells("80B on 64", "H100", zero, 1, full).values())  # noqa: E731
    assert fits(0, False) == fits(1, False) == 3 and fits(3, False) > 3 and fits(0, True) > 3


def test_recompute_costs_a_third_more_work_and_less_memory() -> None:
    plain, again = (cells("8B on 8", "H100", 0, 1, full) for full in (False, True))
    assert again[2, 2].work / plain[2, 2].work == pytest.approx(4 / 3, rel=0.03)
    assert again[2, 2].kept < 0.3 * plain[2, 2].kept and again[2, 2].states == plain[2, 2].states


def test_illegal_cells_are_left_out() -> None:
    assert set(cells("8B on 8", "H100", 0, 1, False)) == {
        (t, p) for t in (1, 2, 4, 8) for p in (1, 2, 4, 8) if t * p <= 8
    }
    assert all(t * p <= 4 for t, p in cells("8B on 8", "H100", 1, 1, False))  # ZeRO needs replicas
    for model, (layers, *_) in SHAPES.items():
        config = zoo.Architecture(*SHAPES[model], positions="rotary", tied="1B" in model)
        assert config.layers == layers and Setup(config, BATCH, SEQ)


def test_a_cell_that_is_not_legal_can_be_chosen() -> None:
    assert MapExplorer(run="8B on 8", micro=8, pipeline=8, tensor=8)._picture(caption="A map.", alt="A map.").png
