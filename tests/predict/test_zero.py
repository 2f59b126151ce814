"""What ZeRO's ranks hold and send: against the paper's formulas, and against `parallel.zero` on real ranks.

Against what papers print: `tests/published/test_zero.py`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from course_kit import measure, ranks
from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes, Seconds
from course_lib import predict
from course_lib.model import hardware, zoo
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.parallel.zero3 import Zero3
from course_lib.predict import Setup
from course_lib.predict.tensors import rank_tensors
from course_lib.predict.traffic import Link
from tests.predict.refused import refused

SMALL = GPTConfig(layers=2, width=32, heads=2, vocab_size=40, context=8)
"""Each of its tensors divides by 4, so no bucket is padded."""
DTYPES = {"mixed": torch.bfloat16, "fp32": torch.float32}
CASES = [(stage, *how) for stage in (1, 2, 3) for how in (("mixed", 3), ("fp32", 1))]
PAPER = Setup(1.5e9, 64, precision="mixed", data=64)


def trained(stage: Any, precision: str) -> tuple[nn.Module, Any, torch.optim.Optimizer]:
    """A GPT on this rank, what reduces its gradients and steps, and the torch optimizer inside."""
    module = GPT(SMALL, dtype=DTYPES[precision])
    if stage == 3:
        model = Zero3(module, bucket_bytes=2**14)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return model, optimizer, optimizer
    zero = ZeroOptimizer(module.parameters(), torch.optim.AdamW, stage=stage, bucket_bytes=2**14, lr=1e-3)
    return module, zero, zero.optimizer


def second_step(stage: Any, precision: str, passes: int) -> dict[str, Any]:
    """What a rank holds between steps, what gradients add to that, and what it sends in a step."""
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    model, zero, optimizer = trained(stage, precision)
    model(tokens, tokens).backward()
    getattr(model, "synchronize", lambda: None)()
    zero.step()
    zero.zero_grad()
    with measure.memory(model, optimizer, inputs=tokens) as record, measure.traffic() as sent:
        between = record.now
        for _ in range(passes):
            model(tokens, tokens).backward()
        getattr(model, "synchronize", lambda: None)()
        gradients, peak = settled(record) - between.total, record.peak.total
        zero.step()
    counters = sum(state["step"].nbytes for state in optimizer.state.values())
    return {"between": between, "gradients": gradients, "peak": peak, "sent": sent, "counters": counters}


def settled(record: measure.MemoryRecord) -> Bytes:
    """What is alive once gloo's threads have let go of the messages that they have delivered."""
    time.sleep(0.2)
    return record.now.total


def second_steps() -> list[dict[str, Any]]:
    return [second_step(*case) for case in CASES]


@pytest.mark.parametrize(
    ("world_size", "backend"),
    [
        (2, "gloo"),
        pytest.param(4, "gloo", marks=pytest.mark.nightly),
        pytest.param(2, "cpu:gloo", marks=pytest.mark.nightly),  # to CPU tensors what "cpu:gloo,cuda:nccl" is
    ],
)
def test_real_ranks_hold_and_send_what_is_predicted(world_size: int, backend: str) -> None:
    """All stages; fp32 masters and three passes, or neither: each category, and what each collective sends."""
    with ranks.Ranks(world_size, backend, diagnose=False) as pool:
        everyone = pool.run(second_steps)
    for each in everyone:
        for (zero, precision, passes), found in zip(CASES, each):
            setup = Setup(SMALL, 2 * passes * world_size, micro_batch=2, precision=precision, data=world_size)  # type: ignore[arg-type]
            compare(setup.with_(zero=zero), found)


def compare(setup: Setup, found: dict[str, Any]) -> None:
    due, between, sent = predict.model_states(setup), found["between"], found["sent"]
    small = 4 * len(rank_tensors(setup, 0, "parameters"))  # which parameters were used
    optimizer = between.optimizer - Bytes(found["counters"])  # AdamW's
    if setup.zero == 3 and setup.precision == "mixed":  # the sum is the paper's, cut differently: see `parallel.zero3`
        assert between.parameters + optimizer == due.optimizer
        assert 0 <= found["gradients"] - due.parameters - due.gradients <= small
    else:
        assert (between.parameters, optimizer, between.gradients) == (due.parameters, due.optimizer, 0)
        assert 0 <= found["gradients"] - due.gradients <= small
    if setup.zero == 3:
        most = due.total + predict.unit_buffers(setup).total + predict.activations(setup) + found["counters"]
        assert 0.7 * most <= found["peak"] <= most + small
    formula = predict.data_traffic(setup)
    cut, joined = formula["reduce_scatter"].bytes, formula["all_gather"].bytes
    calls = sum(sent.messages.values())
    assert sent.modelled_bytes["all_to_all"] == cut  # on gloo, a reduce-scatter is one
    assert sent.modelled_bytes["all_gather"] == joined
    whole = cut + joined + predict.all_reduce(small, setup.data).bytes
    if sent.observed_bytes is not None:
        assert whole <= sent.observed_bytes <= whole + 512 * setup.data * calls  # headers


@pytest.mark.parametrize(
    ("precision", "gradients", "per_parameter"),
    [
        ("mixed", "same", [(2, 2, 12), (2, 2, 12 / 64), (2, 2 / 64, 12 / 64), (2 / 64, 2 / 64, 12 / 64)]),
        ("mixed", "fp32", [(2, 4, 12), (2, 4, 12 / 64), (2, 4 / 64, 12 / 64), (2 / 64, 4 / 64, 12 / 64)]),
        ("fp32", "same", [(4, 4, 8), (4, 4, 8 / 64), (4, 4 / 64, 8 / 64), (4 / 64, 4 / 64, 8 / 64)]),
    ],
)
def test_each_stage_cuts_one_category_more(precision: Any, gradients: Any, per_parameter: list[tuple]) -> None:
    for zero, widths in enumerate(per_parameter):
        states = predict.model_states(PAPER.with_(precision=precision, gradients=gradients, zero=zero))
        assert tuple(states.values())[:3] == tuple(1_500_000_000 * width for width in widths)


def test_on_one_rank_every_stage_is_the_same() -> None:
    setup = Setup(SMALL, 4, precision="mixed")
    plain = predict.model_states(setup)
    for zero in (1, 2, 3):
        assert predict.model_states(setup.with_(zero=zero)) == plain
        assert all(each.bytes == each.messages == 0 for each in predict.data_traffic(setup.with_(zero=zero)).values())


@pytest.mark.parametrize(("micro_batches", "psi"), [(1, (2, 2, 2, 3)), (4, (2, 2, 5, 12))])
def test_traffic_in_elements(micro_batches: int, psi: tuple[int, ...]) -> None:
    """2Ψ, 2Ψ, 2Ψ, 3Ψ, times 63/64; accumulation repeats what a stage cannot keep."""
    for zero, times in enumerate(psi):
        setup = PAPER.with_(zero=zero, batch_size=64 * micro_batches, micro_batch=1)
        sent = sum(each.bytes for each in predict.data_traffic(setup).values())
        assert sent == times * 2 * 1_500_000_000 * 63 // 64


def test_a_wider_gradient_travels_wider() -> None:
    sent = predict.data_traffic(PAPER.with_(zero=1, gradients="fp32"))
    assert sent["reduce_scatter"].bytes == 2 * sent["all_gather"].bytes


def test_buckets_cost_messages_and_their_latency() -> None:
    """As many messages as buckets, and just as many bytes."""
    setup, link = PAPER.with_(zero=3), Link(Seconds(1e-5), 1e-10)
    whole, cut = (predict.data_traffic(setup, buckets=n)["all_gather"] for n in (1, 40))
    assert (cut.bytes, cut.messages) == (whole.bytes, 40 * whole.messages) and whole.messages == 2 * 63
    assert cut.seconds(link) - whole.seconds(link) == pytest.approx(39 * 2 * 63 * 1e-5)


def test_zero_cuts_what_tensor_and_pipeline_parallelism_leave() -> None:
    setup = Setup(SMALL, 8, precision="mixed", data=4, tensor=2, pipeline=2)
    for stage in (0, 1):
        whole = predict.rank_parameters(setup, stage)
        full = setup.with_(zero=3)
        assert predict.rank_parameters(full, stage) == round(whole / 4)
        assert predict.model_states(full, stage).total == pytest.approx(4 * whole, abs=3)
        sent, plain = predict.rank_traffic(full, stage), predict.rank_traffic(setup, stage)
        assert {**sent, "data": None} == {**plain, "data": None}
        assert sent["data"].total_bytes == pytest.approx(1.5 * plain["data"].total_bytes, abs=3)
        assert predict.rank_activations(full, stage) == predict.rank_activations(setup, stage)


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, layers=3, tied=False, bias=False)])
def test_units_are_blocks_and_all_else(config: GPTConfig) -> None:
    model = GPT(config, dtype=torch.bfloat16)
    block = sum(p.nbytes for p in model.blocks[0].parameters())
    rest = sum(p.nbytes for p in model.parameters()) - config.layers * block
    setup = Setup(config, 4, precision="mixed", data=4, zero=3)
    largest = max(p.nbytes for p in model.parameters())
    due = MemoryAccount(Bytes(rest + 2 * block), Bytes(rest + 3 * block + largest))
    assert predict.unit_buffers(setup) == due
    assert predict.unit_buffers(setup, prefetch=False).total == due.total - block
    assert predict.unit_buffers(setup.with_(gradients="fp32")).gradients == 2 * due.gradients
    assert predict.unit_buffers(setup.with_(data=2)) == due


@pytest.mark.parametrize(("zero", "per_parameter"), [(0, 16), (1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)])
def test_the_largest_model_on_64_ranks(zero: Any, per_parameter: float) -> None:
    found = predict.largest(PAPER.with_(zero=zero), "config", 32 * 10**9, holds=predict.model_states)
    assert found.value == pytest.approx(32e9 / per_parameter, rel=1e-9)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("row", [zoo.GPT2_XL, zoo.GPT3_6_7B, zoo.LLAMA3_8B])
def test_the_fewest_ranks_are_enough_and_one_less_is_not(row: Any, zero: Any) -> None:
    memory = hardware.V100_32GB.memory
    found = predict.fewest_ranks(Setup(row, 3, precision="mixed", zero=zero), memory)
    less = replace(found, data=found.data - 1, batch_size=found.batch_size - 3) if found.data > 1 else None
    assert predict.model_states(found).total <= memory and found.rows_per_pass == 3
    assert less is None or predict.model_states(less).total > memory


def test_what_else_is_held_can_decide() -> None:
    def holds(setup: Setup) -> MemoryAccount:
        return predict.model_states(setup) + MemoryAccount(activations=Bytes(30 * 2**30))

    setup = Setup(1.5e9, precision="mixed", zero=2)
    assert predict.fewest_ranks(setup, hardware.V100_32GB.memory).data == 1
    with pytest.raises(ValueError, match="zero=2: 1,048,576 ranks are not enough: each would hold 32.79 GiB"):
        predict.fewest_ranks(setup, hardware.V100_32GB.memory, holds)


test_what_does_not_hold_is_refused = refused(
    (lambda: predict.data_traffic(PAPER, buckets=0), "buckets=0: must be positive"),
    (lambda: predict.unit_buffers(Setup(SMALL, 2, data=2, zero=2)), "zero=2: units are gathered in stage 3"),
    (lambda: predict.unit_buffers(Setup(10**9, data=2, zero=3)), "1,000,000,000 parameters have no layers"),
    (lambda: predict.fewest_ranks(PAPER, 0), "memory=0"),
    (lambda: predict.fewest_ranks(PAPER.with_(zero=1), 10**9), "zero=1: 1,048,576 ranks are not enough"),
)
