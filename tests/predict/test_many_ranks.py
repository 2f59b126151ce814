"""One list for a rank of many, against what real ranks hold, keep and send: every way to cut beside every variant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from course_kit import measure, ranks
from course_lib import predict
from course_lib.model.gpt import GPT, Attention, GPTConfig
from course_lib.parallel.context import ContextParallelGPT
from course_lib.parallel.tensor_gpt import ParallelGPT
from course_lib.predict import Setup
from course_lib.train.recompute import RecomputedLayers, recompute_only
from tests.parallel.tensor_checks import saved_by

SMALL = GPTConfig(layers=3, width=16, heads=4, vocab_size=32, context=16)
LLAMA_LIKE: dict[str, Any] = {"norm": "rmsnorm", "positions": "rotary", "bias": False, "tied": False}
VARIANTS: list[dict[str, Any]] = [
    {"dropout": 0.1},
    {"heads": 2, "dropout": 0.1},  # one head on each of two ranks
    {"attention": "fused"},
    {"attention": "fused", **LLAMA_LIKE},
    {**LLAMA_LIKE, "dropout": 0.1},
    {"positions": "none"},
]
WAYS: list[dict[str, Any]] = [
    {"recompute": "full"},
    {"recompute": "full", "recompute_every": 2},
    {"recompute": "selective"},
]
TENSOR = [
    *(
        Setup(replace(SMALL, **variant), rows, tensor=2, sequence_parallel=sequence_parallel)
        for variant in VARIANTS
        for rows in (1, 3)
        for sequence_parallel in (False, True)
    ),
    *(
        Setup(replace(SMALL, **variant), rows, tensor=2, sequence_parallel=rows == 3, **way)  # type: ignore[arg-type]
        for way in WAYS
        for variant in ({}, {"heads": 2}, {**LLAMA_LIKE, "dropout": 0.1})
        for rows in (1, 3)
    ),
]
CONTEXT = [
    Setup(replace(SMALL, **variant), rows, context=2, precision=precision)
    for variant in ({}, LLAMA_LIKE, {"heads": 1}, {**LLAMA_LIKE, "heads": 1})
    for rows in (1, 3)
    for precision in ("fp32", "bf16")
]


def check(setup: Setup) -> list[str]:
    """Where this rank differs from the formulas: what autograd keeps, and what each operation sends."""
    cut: Any = ContextParallelGPT if setup.context > 1 else ParallelGPT
    arguments = () if setup.context > 1 else (None, setup.sequence_parallel)
    model = cut(GPT(setup.gpt, dtype=torch.bfloat16 if setup.precision == "bf16" else None), *arguments)
    if setup.recompute == "full":
        model.blocks = RecomputedLayers(model.blocks, setup.recompute_every)
    if setup.recompute == "selective":
        recompute_only(model, Attention, "explicit")
    tokens = torch.randint(0, 32, (2, setup.rows_per_pass, setup.seq), generator=torch.Generator().manual_seed(0))
    with measure.traffic() as sent:
        loss, kept = saved_by(model, *tokens.clone().unbind())
        loss.backward()
    due = predict.rank_activations(setup)
    wrong = [] if kept == due else [f"{setup}: keeps {kept}, not {due:d}"]
    formula = predict.rank_traffic(setup)["context" if setup.context > 1 else "tensor"].modelled_bytes
    for operation in {*formula, *sent.modelled_bytes}:
        came, expected = sent.modelled_bytes.get(operation, 0), formula.get(operation, 0)
        if abs(came - expected) > 64:
            wrong.append(f"{setup}: sends {came:d} by {operation}, not {expected:d}")
    return wrong


def check_all(setups: list[Setup]) -> list[str]:
    return [told for setup in setups for told in check(setup)]


@pytest.mark.parametrize("setups", [TENSOR, CONTEXT], ids=["tensor", "context"])
def test_ranks_keep_and_send_what_the_list_says(setups: list[Setup]) -> None:
    """Dropout, recompute, norms, positions and kernels, with one sequence (whose heads are views) and with three."""
    assert ranks.run(check_all, setups, world_size=2, diagnose=False) == [[], []]
