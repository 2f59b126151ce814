"""The pipeline on real ranks: one process's steps, its own formulas, PipeDream's recurrence; deadlocks."""

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_kit import ranks
from course_kit.ranks import RankFailure
from course_lib.pipeline.executor import PacedPipeline, Pipeline
from course_lib.pipeline.schedule import (
    ORDERS,
    checked,
    dualpipe,
    gantt_of,
    gpipe,
    one_f_one_b,
    parse,
    pipedream,
    problems,
    simulate,
    unit_costs,
)
from tests.mutants.parallel import pipeline as wrong
from tests.parallel.judging import accepted, on_ranks, refused
from tests.parallel.parity import OPTIMIZERS, parity
from tests.pipeline import pipeline_checks as checks
from tests.pipeline.pipeline_checks import Staged, problem

SYNCHRONOUS = [name for name in ORDERS if name != "pipedream"]


@on_ranks(2, 4, diagnose=False)
def test_every_synchronous_schedule_equals_one_process():
    for name in SYNCHRONOUS:
        for optimizer in OPTIMIZERS:
            parity(Staged, Pipeline, problem(4), optimizer, name=name)
    parity(Staged, Pipeline, problem(1), "sgd", name="1f1b")
    parity(Staged, Pipeline, problem(3), "sgd", name="zero-bubble")


@on_ranks(1)
def test_a_pipeline_of_one_rank_is_gradient_accumulation():
    ways: list[dict[str, Any]] = [{"name": "zero-bubble"}, {"name": "interleaved", "chunks": 3}, {"name": "zb-v"}]
    for how in ways:
        parity(Staged, Pipeline, problem(4), "sgd", **how)


@on_ranks(4)
def test_parity_holds_under_diagnosis():
    parity(Staged, Pipeline, problem(4), "sgd", name="1f1b")


@on_ranks(4, nightly=(2,), diagnose=False)
def test_bytes_held_and_sent_and_weights_used_are_the_papers():
    """Activations in flight, messages to the neighbours, backward passes that are really split, PipeDream's recurrence.

    Peaks do not grow with the micro-batches: on two ranks four of them have as many in flight as there ever are.
    """
    for name in ("naive", "gpipe", "1f1b"):
        checks.check_in_flight(Pipeline, name)
    for name in ("naive", "gpipe", "1f1b", "zero-bubble", "zb-h2"):
        checks.check_sends(Pipeline, name)
    for name in ("zero-bubble", "zb-h2", "zb-v"):
        checks.check_split(Pipeline, name)
    for optimizer in OPTIMIZERS:
        checks.check_weight_versions(Pipeline, optimizer)
    for name in ORDERS if dist.get_world_size() == 2 else ():
        checks.check_peaks(Pipeline, name)


def test_known_wrong_ones_are_refused():
    cases: dict[Any, Any] = {
        mutant: ("with sgd .*gpipe.* in step 0", parity, Staged, mutant, problem(4), "sgd", {"name": "gpipe"})
        for mutant in wrong.WRONG_GRADIENTS
    }
    cases |= {
        mutant: ("after update|stashed", checks.check_weight_versions, mutant, "sgd", {})
        for mutant in wrong.WRONG_VERSIONS
    }
    cases[wrong.GPipeInDisguise] = ("1f1b: held", checks.check_in_flight, wrong.GPipeInDisguise, "1f1b", {})
    cases[wrong.BackwardInOne] = ("B made the gradients", checks.check_split, wrong.BackwardInOne, {})
    assert accepted(4, cases) == {}


def run_paced(schedule):
    pipeline = PacedPipeline(schedule, checks.stages_for(schedule, checks.UNTIED))
    pipeline.forward_backward(checks.pieces(checks.batch_of(0, schedule.micro_batches)))
    return pipeline.spans


def measured(name):
    """The schedule, and its chart on real ranks; of each rank one action after the other, as the schedule says."""
    schedule = ORDERS[name](4, 4)
    spans = ranks.run(run_paced, schedule, world_size=4, diagnose=False)
    assert [[span.action for span in row] for row in spans] == list(map(list, schedule.actions))
    assert all(first.end <= then.start for row in spans for first, then in itertools.pairwise(row))
    return schedule, gantt_of(schedule.name, spans)


PACED = ["1f1b", "zero-bubble", "interleaved", "zb-v"]


@pytest.mark.parametrize("name", ["zb-v", *(pytest.param(name, marks=pytest.mark.nightly) for name in PACED[:3])])
def test_a_chart_is_measured(name):
    schedule, chart = measured(name)
    assert chart.makespan >= simulate(schedule, unit_costs(schedule, PacedPipeline.unit_s)).makespan


@pytest.mark.timed
@pytest.mark.parametrize("name", PACED)
def test_the_measured_chart_is_the_simulated_one(name):
    """The best of up to ten: other processes may take the cores for longer than an action sleeps."""
    charts = []
    while not charts or len(charts) < 10 and charts[-1].makespan > 1.1 * ideal.makespan:
        schedule, chart = measured(name)
        ideal = simulate(schedule, unit_costs(schedule, PacedPipeline.unit_s))
        charts.append(chart)
    chart = min(charts, key=lambda chart: chart.makespan)
    assert ideal.makespan <= chart.makespan < 2 * ideal.makespan
    assert chart.bubble == pytest.approx(ideal.bubble, abs=0.15)


DEADLOCK = "F0 BW0 F1 BW1\nF0 F1 BW0 BW1"
"""Rank 0 wants the first gradient before it sends the second activation; rank 1 does it the other way round."""


def forced(text):
    schedule = parse(text)
    stages = checks.stages_for(schedule, checks.UNTIED)
    Pipeline(schedule, stages, check=False).forward_backward(checks.pieces(checks.batch_of(0, 2)))


def test_a_deadlock_is_explained_before_it_happens_and_when_it_does():
    with pytest.raises(
        ValueError, match="deadlock: rank 0 waits before BW0 .* rank 1 waits before F1 .*nobody can go on"
    ):
        checked(parse(DEADLOCK))
    with pytest.raises(RankFailure) as caught:
        ranks.run(forced, DEADLOCK, world_size=2, timeout_s=30)
    assert str(caught.value).startswith("deadlock: rank 0 waits in irecv from rank 1")


def with_blocking_sends(schedule):
    stages = checks.stages_for(schedule, checks.UNTIED)
    pipeline = Pipeline(schedule, stages, blocking_sends=True)
    pipeline.forward_backward(checks.pieces(checks.batch_of(0, schedule.micro_batches)))


def test_1f1b_deadlocks_if_sends_block_and_gpipe_does_not():
    assert problems(gpipe(2, 3), blocking_sends=True) == []
    ranks.run(with_blocking_sends, gpipe(2, 3), world_size=2)
    (told,) = problems(one_f_one_b(2, 3), blocking_sends=True)
    assert (
        "rank 0 sends the activation of micro-batch 1" in told and "rank 1 sends the gradient of micro-batch 0" in told
    )
    with pytest.raises(RankFailure) as caught:
        ranks.run(with_blocking_sends, one_f_one_b(2, 3), world_size=2, timeout_s=3)
    assert "rank 0 waits in send to rank 1" in str(caught.value)
    assert "rank 1 waits in send to rank 0" in str(caught.value)


def tried(n_micro_batches=4, hole=None, steps=1):
    schedule = one_f_one_b(2, 4)
    pipeline = Pipeline(schedule, checks.stages_for(schedule, checks.TIED))
    for step in range(steps):
        pieces = checks.pieces(checks.batch_of(step, n_micro_batches))
        if hole is not None:
            pieces[hole] = (pieces[hole][0], torch.full_like(pieces[hole][1], -100))
        pipeline.forward_backward(pieces)


def made(schedule, optimizes=False, swapped=False):
    stages = checks.stages_for(one_f_one_b(2, 4), checks.TIED)
    optimizer = torch.optim.SGD(checks.parameters_of(stages), lr=0.1) if optimizes else None
    Pipeline(schedule, {1 - dist.get_rank(): next(iter(stages.values()))} if swapped else stages, optimizer=optimizer)


MISTAKES = [
    (lambda: tried(3), "3 micro-batches given, but the schedule has 4"),
    (lambda: tried(hole=3), "micro-batch 3 has no target, and a mean over nothing is nan"),
    (lambda: tried(steps=2), "a tied weight already has a gradient, which would count twice"),
    (lambda: made(dualpipe(2, 4)), "'dualpipe' is data only: this executor holds one copy of each stage"),
    (lambda: made(gpipe(4, 4)), "the schedule is for 4 ranks, but the pipeline has 2"),
    (lambda: made(one_f_one_b(2, 4), swapped=True), r"was given the stages \[.\], but in the schedule it holds \[.\]"),
    (lambda: made(one_f_one_b(2, 4), optimizes=True), "an asynchronous schedule steps by itself"),
    (lambda: made(pipedream(2, 4), optimizes=True), "build with tied=False"),
]


def test_mistakes_are_refused():
    assert refused(2, MISTAKES) == []


@on_ranks(2, diagnose=False)
def test_pipedream_leaves_frozen_weights_alone():
    schedule = pipedream(dist.get_world_size(), 4)
    stages = checks.stages_for(schedule, checks.SMALL)
    for stage in stages.values():
        for name, parameter in stage.named_parameters():
            parameter.requires_grad_("mlp" not in name and "head" not in name)
    frozen = {p: p.detach().clone() for p in checks.parameters_of(stages) if not p.requires_grad}
    trained = {p: p.detach().clone() for p in checks.parameters_of(stages) if p.requires_grad}
    optimizer = torch.optim.SGD(checks.parameters_of(stages), lr=0.1)
    Pipeline(schedule, stages, optimizer=optimizer).forward_backward(checks.pieces(checks.batch_of(0, 4)))
    assert frozen and all(torch.equal(p, before) for p, before in frozen.items()), "a frozen weight has moved"
    assert all(not torch.equal(p, before) for p, before in trained.items()), "a weight has not moved"
