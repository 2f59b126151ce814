"""What one rank of many holds and sends, and the bubble: against the whole, against schedules played on paper.

Against what real layers hold and send: `tests/parallel`. Against what papers print: `tests/published`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPTConfig
from course_lib.pipeline.schedule import ORDERS, peak_in_flight, simulate
from course_lib.pipeline.stages import GPTStage
from course_lib.predict import Setup
from course_lib.predict.pipeline import SCHEDULES
from course_lib.predict.tensors import stage_layers
from tests.predict.refused import refused

SMALL = GPTConfig(layers=4, width=32, heads=4, vocab_size=31, context=16)
SHAPES = [SMALL, replace(SMALL, tied=False, bias=False), replace(SMALL, norm="rmsnorm", positions="rotary")]


@pytest.mark.parametrize("config", SHAPES)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages_hold_what_gpt_stages_hold(config: GPTConfig, stages: int) -> None:
    setup = Setup(config, 4, pipeline=stages, optimizer="adam")
    for number in range(stages):
        layers = stage_layers(setup, number)
        stage = GPTStage(config, layers)
        assert predict.rank_parameters(setup, number) == sum(p.numel() for p in stage.parameters())
        assert predict.rank_parameters(setup, layers) == predict.rank_parameters(setup, number)
        states = predict.model_states(setup, number)
        optimizer = torch.optim.Adam(stage.parameters())
        for p in stage.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        held = sum(value.nbytes for each in optimizer.state.values() for value in each.values())
        assert (states.parameters, states.optimizer) == (sum(p.nbytes for p in stage.parameters()), held)
    everywhere = [layer for number in range(stages) for layer in stage_layers(setup, number)]
    assert everywhere == list(range(config.layers + 2))


def test_tensor_ranks_share_matrices_and_repeat_norms() -> None:
    """GPT-3 on 8 ranks: an eighth, and 96 times 4 vectors for norms and 2 for biases of rows whole."""
    setup = Setup(zoo.GPT3_175B, tensor=8)
    whole = 12288 * (96 * 6 + 2)
    assert predict.rank_parameters(setup) == (predict.parameters(zoo.GPT3_175B) - whole) / 8 + whole


def test_more_ranks_keep_less_and_never_less_than_their_share() -> None:
    plain = Setup(SMALL, 4, micro_batch=2)
    one = predict.rank_activations(plain)
    ways = {"context": {"context": 2}, "both": {"tensor": 2, "sequence_parallel": True}, "tensor": {"tensor": 2}}
    kept = {name: predict.rank_activations(plain.with_(**how)) for name, how in ways.items()}
    assert one / 2 < kept["both"] < kept["tensor"] < one and one / 3 < kept["context"] < kept["both"]


def test_a_step_sends_the_same_in_pieces_but_for_what_is_whole() -> None:
    """Sums of whole parameters' gradients are sent for each micro-batch."""
    setup = Setup(SMALL, 8, tensor=2, data=2)
    pieces = setup.with_(micro_batch=1)
    assert predict.rank_traffic(pieces) == predict.rank_traffic(setup)
    cut = [predict.rank_traffic(each.with_(sequence_parallel=True))["tensor"] for each in (setup, pieces)]
    once, often = (dict(each.modelled_bytes) for each in cut)
    assert often.pop("all_reduce") == 4 * once.pop("all_reduce") and often == once


def test_the_data_axis_sends_what_the_rank_holds() -> None:
    setup = Setup(SMALL, 8, data=4, tensor=2, pipeline=2, precision="mixed")
    for stage in (0, 1):
        n_bytes = 2 * predict.rank_parameters(setup, stage)
        sent = predict.rank_traffic(setup, stage)
        assert sent.keys() == {"tensor", "pipeline", "data"}
        assert sent["data"].modelled_bytes == {"all_reduce": predict.all_reduce(n_bytes, 4).bytes}


SIZES = [(p, m) for p in (1, 2, 3, 4) for m in (1, 2, 3, 4, 6, 8, 12)]
CHUNKS = {schedule: (1, 2, 3) if schedule == "interleaved" else (1,) for schedule in SCHEDULES}
ROUNDS = [(schedule, p, m, chunks) for schedule in SCHEDULES for p, m in SIZES for chunks in CHUNKS[schedule]]


def does_not_hold(schedule: str, p: int, m: int) -> bool:
    """Whether the closed form refuses these numbers of stages and micro-batches."""
    return (schedule == "interleaved" and m % p > 0) or (schedule.startswith("z") and m < p)


@pytest.mark.parametrize(("schedule", "p", "m", "chunks"), ROUNDS)
def test_bubbles_and_micro_batches_in_flight_are_those_of_the_schedules(schedule, p, m, chunks) -> None:
    """Played on paper with unit costs; where the formula does not hold, it says so."""
    setup = Setup(replace(SMALL, layers=12), m, micro_batch=1, pipeline=p)
    if does_not_hold(schedule, p, m):
        for call in (predict.bubble, lambda *cut: predict.in_flight(setup, 0, *cut[1:])):
            with pytest.raises(ValueError, match="come round in groups of|are fewer than pipeline="):
                call(setup, schedule, chunks)
        return
    order = ORDERS[schedule](p, m, **({"chunks": chunks} if schedule == "interleaved" else {}))
    played = simulate(order)
    assert tuple(predict.bubble(setup, schedule, chunks)) == pytest.approx((played.bubble, played.bubble_over_ideal))
    waits = predict.bubble(setup, schedule, chunks, synchronized=False).over_ideal
    assert waits == pytest.approx(played.bubble_without_sync, abs=1e-12)
    held = [predict.in_flight(setup, rank, schedule, chunks) for rank in range(p)]
    assert held == [peak_in_flight(actions) for actions in order.actions]


def test_a_rank_of_the_v_has_two_half_stages_and_the_first_one_both_ends() -> None:
    setup, halves = (Setup(replace(SMALL, layers=8), 8, micro_batch=1, pipeline=p) for p in (4, 8))
    first = predict.rank_memory(setup, 0, "zb-v")
    ends = [predict.rank_parameters(halves, stage) for stage in (0, 7)]
    assert first.parameters == 4 * sum(ends)
    down, up = (predict.rank_activations(halves, stage) for stage in (0, 7))
    assert first.activations == 7 * down + up  # of 2p halves: where the V ends, backward comes at once
    whole = predict.rank_memory(setup, 1, "zb-h2")
    assert whole.activations == 7 * predict.rank_activations(setup, 1)
    assert predict.rank_memory(setup, 1, "zb-v").activations == 4 * predict.rank_activations(setup, 1)


WIDE_HEAD = GPTConfig(layers=12, width=8, heads=2, vocab_size=4096, context=8, dropout=0.1)
"""Its ends keep more than its blocks: a stage's share is no mean of a rank's stages."""
MIXED = replace(zoo.MIXTRAL_8X7B, layers=12, expert_layers=4)
"""Blocks with experts and without."""


@pytest.mark.parametrize("config", [WIDE_HEAD, MIXED], ids=["gpt", "experts"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_rank_holds_at_most_what_its_actions_leave(schedule: str, config: GPTConfig | zoo.ExpertModel) -> None:
    """F adds what its stage keeps of a micro-batch, the last of its backward passes frees it, as in the executor."""
    for p, m, chunks in [(p, m, v) for p in (1, 2, 3, 4, 6) for m in (1, 2, 3, 6, 8, 12, 24) for v in (1, 2, 3)]:
        setup = Setup(config, m, 8, micro_batch=1, pipeline=p)
        stages = {"interleaved": chunks, "zb-v": 2}.get(schedule, 1)
        if does_not_hold(schedule, p, m) or 12 % (p * stages) or (chunks > 1 and schedule != "interleaved"):
            continue
        order = ORDERS[schedule](p, m, **({"chunks": chunks} if schedule == "interleaved" else {}))
        fine = setup.with_(pipeline=p * stages)
        kept = [predict.rank_activations(fine, stage) for stage in range(p * stages)]
        for rank, actions in enumerate(order.actions):
            held = [0]
            for kind, stage, _ in actions:
                held.append(held[-1] + {"F": 1, "B": 0, "BW": -1, "W": -1}[kind] * kept[stage])
            account = predict.rank_memory(setup, rank, schedule, chunks)
            assert (account.activations, held[-1]) == (max(held), 0), (p, m, chunks, rank)
            own = order.stages_of(rank)
            assert account.parameters == sum(predict.model_states(fine, stage).parameters for stage in own)


def test_stages_that_are_cut_unevenly_are_asked_by_their_layers() -> None:
    """Llama 3 405B on 16 stages, a block less at both ends; and an even stage by its layers is the even stage."""
    uneven = Setup(zoo.LLAMA3_405B, 64, 8192, micro_batch=1, precision="mixed", tensor=8, pipeline=16, data=8, zero=1)
    with pytest.raises(ValueError, match="126 blocks do not split into pipeline=16 equal parts"):
        predict.rank_memory(uneven)
    ends = [range(8), *(range(8 * n, 8 * n + 8) for n in range(1, 15)), range(120, 128)]
    for stage, layers in enumerate(ends):
        account = predict.rank_memory(uneven, stage, layers=layers)
        assert account.activations == min(8, 16 - stage) * predict.rank_activations(uneven, layers)
        assert account.optimizer == predict.model_states(uneven, layers).optimizer
    even = Setup(SMALL, 6, pipeline=4, micro_batch=1)
    for stage in range(4):
        assert predict.rank_memory(even, stage, layers=stage_layers(even, stage)) == predict.rank_memory(even, stage)


def test_a_blocks_input_is_the_ranks_part_of_it() -> None:
    setup = Setup(SMALL, 4, 16, precision="mixed", tensor=2, context=2)
    assert predict.block_input(setup) == 2 * 4 * 8 * SMALL.width
    assert predict.block_input(setup.with_(sequence_parallel=True)) == 4 * 8 * SMALL.width
    full = setup.with_(sequence_parallel=True, recompute="full")
    assert predict.rank_activations(full, range(2, 3)) == predict.block_input(full)


PIPE = Setup(SMALL, 6, pipeline=4, micro_batch=1)
test_what_does_not_hold_is_refused = refused(
    (lambda: predict.rank_parameters(PIPE, 4), "stage=4: with pipeline=4 there are stages 0 to 3"),
    (lambda: predict.rank_parameters(PIPE, range(4, 7)), "give a range within 0 .* to 5"),
    (lambda: predict.rank_parameters(Setup(SMALL, 6, pipeline=3)), "4 blocks do not split into pipeline=3"),
    (
        lambda: predict.rank_traffic(Setup(zoo.SWITCH_BASE, 2, expert=2)),
        "Switch-Base is an encoder and a decoder with a stream each",
    ),
    (lambda: predict.rank_traffic(Setup(zoo.GOPHER_280B, 8, tensor=2)), "relative positions keep tensors of their own"),
    (lambda: predict.rank_activations(Setup(SMALL, context=2, recompute="selective")), "a ring, keeps no scores"),
    (lambda: predict.bubble(PIPE, "dualpipe"), "schedule='dualpipe': it must be one of 'naive', 'gpipe'"),
    (lambda: predict.bubble(PIPE, "1f1b", 2), 'chunks=2 is for schedule="interleaved"'),
    (lambda: predict.bubble(PIPE, "interleaved", 2), "6 micro-batches come round in groups of pipeline=4"),
    (lambda: predict.in_flight(PIPE.with_(batch_size=3), 0, "zero-bubble"), "3 micro-batches are fewer"),
    (lambda: predict.in_flight(PIPE.with_(batch_size=3), 0, "zb-v"), "3 micro-batches are fewer"),
    (lambda: predict.in_flight(PIPE, 4), "stage=4"),
    (lambda: predict.in_flight(PIPE, range(2)), "there are stages 0 to 3; `layers` say what is on one"),  # type: ignore[arg-type]
    (lambda: predict.rank_memory(PIPE, range(2)), "there are stages 0 to 3; `layers` say what is on one"),  # type: ignore[arg-type]
    (
        lambda: predict.rank_memory(PIPE.with_(batch_size=8), 0, "interleaved", 2, layers=range(2)),
        r"layers=range\(0, 2\).*: a rank with 2 stages has them cut evenly",
    ),
    (lambda: predict.rank_memory(PIPE, 1, layers=range(4, 7)), "give a range within 0 .* to 5"),
    (
        lambda: predict.rank_memory(PIPE.with_(pipeline=2), 0, "interleaved", 5),
        "4 blocks do not split into pipeline=2 · chunks=5",
    ),
)
