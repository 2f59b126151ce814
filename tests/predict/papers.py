"""Formulas as papers print them, which the library has in a form of its own: what a test holds it against."""

from __future__ import annotations

from collections.abc import Collection

from course_kit.accounts import CATEGORIES
from course_kit.units import Bytes
from course_lib import predict
from course_lib.model.refusals import one_of
from course_lib.model.zoo import ExpertModel
from course_lib.predict import Setup


def step_flops(setup: Setup) -> int:
    """FLOPs of a training step as the Megatron papers write it, for an MLP four times as wide as the model.

    - "none": 72·B·s·l·h²·(1 + s/6h + V/12lh) (Korthikanti et al. 2022, eq. 7).
    - "selective": 72·B·s·l·h²·(1 + s/3h + V/12lh) (the same, eq. 8; see `predict.recomputed_flops`).
    - "full": 96·B·s·l·h²·(1 + s/6h + V/16lh) (Narayanan et al. 2021, eq. 3).
    """
    config = setup.gpt
    h, s, tokens = config.width, setup.seq, setup.batch_size * setup.seq
    assert config.mlp_width == 4 * h
    a_layer = {
        "none": 72 * h * h + 12 * s * h,  # 3 · 24 h², 3 · 4 s h
        "selective": 72 * h * h + 24 * s * h,  # as printed; recomputing adds 4 s h, not 12
        "full": 96 * h * h + 16 * s * h,  # 4 passes in place of 3
    }
    return tokens * (config.layers * a_layer[setup.recompute] + 6 * h * config.vocab_size)


def palms_token_flops(setup: Setup, parameters: int) -> int:
    """FLOPs per trained token: 6·N + 12·l·h·(head width)·s (Chowdhery et al. 2022, appendix B).

    Position tables multiply nothing and are not in N; a tied embedding is: it is the head.
    """
    config = setup.gpt
    return 6 * parameters + 12 * config.layers * config.heads * config.head_width * setup.seq


def expert_flops(model: ExpertModel) -> int:
    """FLOPs of one token's forward pass: two for each active parameter but the embedding's, a lookup."""
    return 2 * (predict.expert_parameters(model).active - model.lookup * model.width)


def kept_on_device(setup: Setup, away: Collection[str]) -> Bytes:
    """Bytes of model states that stay when those of `away` lie elsewhere (Ren et al. 2021, Table 1)."""
    states = predict.model_states(setup)
    for state in away:
        one_of("state", state, CATEGORIES[:3])
    return sum((states[name] for name in CATEGORIES[:3] if name not in away), Bytes(0))
