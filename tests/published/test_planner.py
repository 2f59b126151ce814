"""The planner beside published runs: the errors that lesson 17 prints, from constants that have not seen the run.

`course_pages/lesson17/rows.json` holds the runs; `held_out.py` beside it fits and holds out. Rows that no prediction
can explain stay in: nothing is left out but what `rows.json` says.
"""

import json

import numpy as np
import pytest

from benchmarks import planner
from course_lib.model.hardware import H100_80GB
from course_lib.predict.planner import Constants, constants_for, fitted
from course_pages.lesson17 import truth

nightly = pytest.mark.nightly  # what needs `held_out`: lesson 17 shows the same fits and errors in a cell


@pytest.fixture(scope="module")
def held_out() -> dict[str, dict[str, np.ndarray]]:
    return planner.held_out()


def timed(runs: truth.Runs) -> np.ndarray:
    return np.where(runs.clean, runs.seconds, np.nan)


@nightly
def test_seconds_of_runs_that_the_fit_did_not_see(held_out: dict[str, dict[str, np.ndarray]]) -> None:
    found = [
        (machine, each)
        for machine, runs in truth.read().items()
        for each in truth.verdict(runs, held_out[machine]["seconds"], timed(runs))
        if each.n >= 2
    ]
    assert len(found) == 23
    missed = [each for each in found if round(each[1].median, 3) > 0.07 or round(each[1].p90, 3) > 0.2]  # as printed
    assert missed == []


@nightly
def test_the_planner_beats_the_rule_of_thumb(held_out: dict[str, dict[str, np.ndarray]]) -> None:
    for machine in ("H100 nanotron", "H100 FSDP", "A100 FSDP", "A100 Megatron-DeepSpeed"):
        runs = truth.read()[machine]
        planned, thumb = (np.nanmedian(np.abs(held_out[machine][n] / timed(runs) - 1)) for n in ("seconds", "thumb"))
        assert planned < 0.6 * thumb, machine


@nightly
@pytest.mark.parametrize(
    ("machine", "source", "n"),
    [("H100 nanotron", "ultrascale", 1220), ("A100 Megatron-DeepSpeed", "bigscience-prequel", 29)],
)
def test_gigabytes_of_runs_that_the_fit_did_not_see(
    held_out: dict[str, dict[str, np.ndarray]], machine: str, source: str, n: int
) -> None:
    runs = truth.read()[machine]
    each = truth.verdict(runs, held_out[machine]["gigabytes"], runs.gigabytes)[0]
    assert (each.source, each.n) == (source, n)
    assert each.median <= 0.07 and each.p90 <= 0.20


@nightly
def test_failures_are_recognised(held_out: dict[str, dict[str, np.ndarray]]) -> None:
    """At the planner's own limit."""
    runs, least = truth.read()["H100 nanotron"], held_out["H100 nanotron"]["least"]
    refused = (least > constants_for(H100_80GB).fillable * H100_80GB.usable / 1e9) | runs.illegal
    assert refused[runs.failed].mean() >= 0.9
    assert refused[~runs.failed].mean() <= 0.005


@nightly
def test_the_chosen_run_is_near_the_best_that_was_measured(held_out: dict[str, dict[str, np.ndarray]]) -> None:
    cases = planner.choices(truth.read()["H100 nanotron"], held_out["H100 nanotron"]["seconds"])
    assert len(cases) == 18
    assert sum(over <= 1.15 for *_, over in cases) >= 0.8 * len(cases)


def test_rows_are_small_and_say_what_was_left_out() -> None:
    table = json.loads(truth.ROWS.read_text("utf-8"))
    assert truth.ROWS.stat().st_size < 400_000
    assert sum(len(each["rows"]) for each in table["models"]) > 2400
    assert {each["source"] for each in table["models"]} == set(table["sources"])
    assert sum(table["left_out"].values()) > 150


def test_a_public_calculator_is_further_off() -> None:
    """Checked by hand for 1B on 8: 1.34e9 + 0.27e9 parameters, (2/tp + 4 + 12) bytes, 34 bytes a token and feature."""
    runs = truth.read()["H100 nanotron"]
    each, theirs = runs.work.layouts, truth.cookbook(runs)
    n = np.flatnonzero((runs.model == "llama-like-1B") & (runs.gpus == 8) & (each.tensor == 2) & (each.zero == 0))[0]
    states = (1_342_177_280 + 131_072 * 2048) * (2 / 2 / each.pipeline[n] + 16)
    kept = 34 * each.micro_batch[n] * 4096 * 2048 * 16 / 2
    assert theirs[n] * 1e9 == pytest.approx(states + kept, rel=1e-3)
    assert truth.verdict(runs, theirs, runs.gigabytes)[0].median > 0.3


def test_a_row_of_mosaicml_counts_its_own_flops() -> None:
    runs = truth.read()["A100 FSDP"]
    work = runs.work
    number = next(n for n in range(len(runs.seconds)) if runs.model[n] == "mpt-7b" and work.passes[n] == 3)
    ours, tokens = (work.layers * (work.products + work.scores) + work.head)[number], work.tokens[number]
    theirs = 6 * 6_658_859_008 + 12 * 32 * 4096 * tokens / work.layouts.micro_batch[number]
    assert ours / tokens == pytest.approx(theirs, rel=0.01)


def test_the_stored_constants_are_those_of_a_fit() -> None:
    runs = truth.read()["H100 FSDP"]
    stored, again = Constants(**fitted()["H100 FSDP"]["constants"]), planner.fit("H100 FSDP", runs)
    both = (truth.step_seconds(runs, each) for each in (stored, again))
    assert np.abs(np.divide(*both) - 1).max() < 0.02


def test_stages_are_cut_as_nanotron_cuts_them() -> None:
    assert planner.cut_by_cost(16, 4.0, 8) == ([3, 3, 0], 1)  # the head is worth four blocks: the last one has none
    assert planner.cut_by_cost(16, 4.0, 16)[1] == 3
    assert planner.cut_by_cost(32, 0.0, 1) == ([32, 32, 32], 0)
