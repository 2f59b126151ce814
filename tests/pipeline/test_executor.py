"""The pipeline on real ranks: against the single-device step, its own formulas, PipeDream's recurrence; deadlocks."""

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
from tests.pipeline import pipeline_checks as checks

SYNCHRONOUS = [name for name in ORDERS if name != "pipedream"]


def every_parity():
    for name in SYNCHRONOUS:
        for optimizer in checks.OPTIMIZERS:
            checks.check_parity(Pipeline, name, optimizer)
    checks.check_parity(Pipeline, "1f1b", "sgd", n_micro_batches=1)
    checks.check_parity(Pipeline, "zero-bubble", "sgd", n_micro_batches=3)


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_synchronous_schedule_equals_the_single_device(world_size):
    ranks.run(every_parity, world_size=world_size, diagnose=False)


def all_stages_on_one_rank():
    checks.check_parity(Pipeline, "zero-bubble", "sgd")
    checks.check_parity(Pipeline, "interleaved", "sgd", chunks=3)
    checks.check_parity(Pipeline, "zb-v", "sgd")


def test_a_pipeline_of_one_rank_is_gradient_accumulation():
    ranks.run(all_stages_on_one_rank, world_size=1)


def test_parity_holds_under_diagnosis():
    ranks.run(checks.check_parity, Pipeline, "1f1b", "sgd", world_size=4)


@pytest.mark.parametrize("mutant", wrong.WRONG_GRADIENTS)
def test_wrong_gradients_are_rejected(mutant):
    """A rank that stops at its first wrong step leaves the others waiting, so one rank's word is enough."""
    with pytest.raises(RankFailure, match="AssertionError: gpipe, after step 0"):
        ranks.run(checks.check_parity, mutant, "gpipe", "sgd", world_size=2, timeout_s=30, diagnose=False)


def every_peak():
    for name in ("naive", "gpipe", "1f1b"):
        checks.check_in_flight(Pipeline, name)


@pytest.mark.parametrize("world_size", [2, 4])
def test_activations_in_flight_are_as_predicted(world_size):
    ranks.run(every_peak, world_size=world_size, diagnose=False)


@pytest.mark.parametrize("name", ORDERS)
def test_peaks_do_not_depend_on_the_number_of_micro_batches(name):
    """On two ranks: four micro-batches are then enough to have as many in flight as there ever are."""
    ranks.run(checks.check_peaks, Pipeline, name, world_size=2, diagnose=False)


def every_send():
    for name in ("naive", "gpipe", "1f1b", "zero-bubble", "zb-h2"):
        checks.check_sends(Pipeline, name)


@pytest.mark.parametrize("world_size", [2, 4])
def test_bytes_sent_to_the_neighbours_are_as_predicted(world_size):
    ranks.run(every_send, world_size=world_size, diagnose=False)


def test_gpipe_in_disguise_is_rejected():
    with pytest.raises(RankFailure, match="AssertionError: 1f1b: rank . held"):
        ranks.run(checks.check_in_flight, wrong.GPipeInDisguise, "1f1b", world_size=4, timeout_s=30, diagnose=False)


def every_split():
    for name in ("zero-bubble", "zb-h2", "zb-v"):
        checks.check_split(Pipeline, name)


@pytest.mark.parametrize("world_size", [2, 4])
def test_backward_passes_are_really_split(world_size):
    ranks.run(every_split, world_size=world_size)


def test_a_backward_pass_in_one_is_rejected():
    with pytest.raises(RankFailure, match="AssertionError: B made the gradients"):
        ranks.run(checks.check_split, wrong.BackwardInOne, world_size=2, timeout_s=30)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("optimizer", checks.OPTIMIZERS)
def test_pipedreams_weights_follow_the_papers_recurrence(world_size, optimizer):
    ranks.run(checks.check_weight_versions, Pipeline, optimizer, world_size=world_size, diagnose=False)


@pytest.mark.parametrize("mutant", wrong.WRONG_VERSIONS)
def test_wrong_weight_versions_are_rejected(mutant):
    with pytest.raises(RankFailure, match="AssertionError: (after update|rank . stashed)"):
        ranks.run(checks.check_weight_versions, mutant, "sgd", world_size=4, timeout_s=30, diagnose=False)


def run_paced(schedule):
    pipeline = PacedPipeline(schedule, checks.stages_for(schedule, checks.UNTIED))
    pipeline.forward_backward(checks.pieces(checks.batch_of(0, schedule.micro_batches)))
    return pipeline.spans


@pytest.mark.parametrize("name", ["1f1b", "zero-bubble", "interleaved", "zb-v"])
def test_the_measured_chart_is_the_simulated_one(name):
    """The best of up to ten: other processes may take the cores for longer than an action sleeps."""
    schedule = ORDERS[name](4, 4)
    ideal = simulate(schedule, unit_costs(schedule, PacedPipeline.unit_s))
    charts = []
    while not charts or len(charts) < 10 and charts[-1].makespan > 1.1 * ideal.makespan:
        charts.append(gantt_of(schedule.name, ranks.run(run_paced, schedule, world_size=4, diagnose=False)))
    chart = min(charts, key=lambda chart: chart.makespan)
    assert [[span.action for span in spans] for spans in chart.spans] == list(map(list, schedule.actions))
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


def refused(what):
    schedule = one_f_one_b(2, 4)
    stages = checks.stages_for(schedule, checks.TIED)
    optimizer = torch.optim.SGD(checks.parameters_of(stages), lr=0.1)
    if what == "number":
        Pipeline(schedule, stages).forward_backward(checks.pieces(checks.batch_of(0, 3)))
    if what == "no target":
        pieces = checks.pieces(checks.batch_of(0, 4))
        Pipeline(schedule, stages).forward_backward([*pieces[:3], (pieces[3][0], torch.full_like(pieces[3][1], -100))])
    if what == "twice":
        pipeline = Pipeline(schedule, stages)
        for step in range(2):
            pipeline.forward_backward(checks.pieces(checks.batch_of(step, 4)))
    if what == "mirrored":
        Pipeline(dualpipe(2, 4), stages)
    if what == "ranks":
        Pipeline(gpipe(4, 4), stages)
    if what == "stages":
        Pipeline(schedule, {1 - dist.get_rank(): next(iter(stages.values()))})
    if what == "optimizer":
        Pipeline(schedule, stages, optimizer=optimizer)
    if what == "tied":
        Pipeline(pipedream(2, 4), stages, optimizer=optimizer)


@pytest.mark.parametrize(
    ("what", "message"),
    {
        "number": "3 micro-batches given, but the schedule has 4",
        "no target": "micro-batch 3 has no target, and a mean over nothing is nan",
        "twice": "a tied weight already has a gradient, which would count twice",
        "mirrored": "'dualpipe' is data only: this executor holds one copy of each stage",
        "ranks": "the schedule is for 4 ranks, but the pipeline has 2",
        "stages": r"rank 0 was given the stages \[1\], but in the schedule it holds \[0\]",
        "optimizer": "an asynchronous schedule steps by itself",
        "tied": "build with tied=False",
    }.items(),
)
def test_mistakes_are_refused(what, message):
    with pytest.raises(RankFailure, match=message):
        ranks.run(refused, what, world_size=2, timeout_s=30)


def frozen_in_pipedream():
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


def test_pipedream_leaves_frozen_weights_alone():
    ranks.run(frozen_in_pipedream, world_size=2, diagnose=False)
