"""Bytes of models that nobody here wrote: what a rank holds and sends, as predicted from a number of parameters."""

from __future__ import annotations

import time
from typing import Literal

import pytest
import torch.distributed as dist

from course_kit import measure
from course_lib import predict
from course_lib.predict import Setup
from tests.foreign import runs
from tests.foreign.models import MODELS
from tests.foreign.runs import ROWS, How
from tests.foreign.test_wrappers import on_ranks

STAGE: dict[How, Literal[0, 1, 2, 3]] = {"bucketed": 0, "zero1": 1, "zero2": 2, "zero3": 3}
WHOLE = 2**30
"""Bytes: one bucket for each unit."""
ONE_NUMBER = 4


def held_and_sent(name: str, how: How) -> dict[str, int]:
    """What this rank holds behind a backward pass and sends in a step, and what was counted without a formula."""
    foreign, rank, ranks = MODELS[name], dist.get_rank(), dist.get_world_size()
    module = foreign.model(seed=0)
    run = runs.start(how, foreign, module, WHOLE)
    rule = getattr(run.optimizer, "optimizer", run.optimizer)
    runs.train(run, foreign, [0])  # the optimizer has its state, and buckets their order
    part = runs.shares(foreign.batch_of(1, ROWS * ranks), ranks)[rank]
    with measure.traffic() as sent, measure.memory(run.model, rule, tuple(part.values())) as record:
        run.optimizer.zero_grad()
        before = record.now
        foreign.loss(run.model(**part), part).backward()
        run.finish()
        time.sleep(0.2)  # gloo's threads let go of what they have sent a little later
        held = record.now
        run.optimizer.step()
    # stage 2 has the mean of a bucket, which is no parameter's `grad` yet
    means = held.temporaries - before.temporaries if how == "zero2" else 0
    return {
        "parameters": held.parameters,
        "gradients": held.gradients + means,
        "optimizer": held.optimizer,
        "sent": sum(sent.modelled_bytes.values()),
        "elements": sum(p.numel() for p in module.parameters()),
        "tensors": len(list(module.parameters())),
        "pieces": sum("step" in state for state in rule.state.values()),
    }


@pytest.mark.nightly  # tests/predict holds our own models to the same bytes
@pytest.mark.parametrize("how", STAGE)
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "vit", "mixtral", "deepseek", "toy transformer", "nested"])
def test_a_rank_holds_and_sends_what_is_predicted(name: str, how: How) -> None:
    """To the byte: all these sizes divide by two. Besides, a step count has a number for each piece of a weight, and
    the ranks agree on which weights were used with one for each weight (`ZeRO` with another, for an overflow)."""
    found = on_ranks(held_and_sent, name, how)
    setup = Setup(found["elements"], data=2, zero=STAGE[how])
    due = predict.model_states(setup)
    used = ONE_NUMBER * (found["tensors"] + (STAGE[how] > 0))
    assert found["parameters"] == due.parameters
    assert found["gradients"] == due.gradients + (used if how == "bucketed" else 0)  # there, behind the gradients
    assert found["optimizer"] == due.optimizer + ONE_NUMBER * found["pieces"]
    sent = sum(each.bytes for each in predict.data_traffic(setup).values())
    assert found["sent"] == sent + predict.all_reduce(used, 2).bytes
