"""What papers print about models with experts: counts, capacity, the loss of balance, computed again."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from course_lib import predict
from course_lib.model import zoo
from course_lib.model.experts import Choice, ExpertConfig, Routing
from course_lib.model.zoo import ExpertModel
from tests.predict.papers import expert_flops

from .rows import figures, rows_of

ROWS = rows_of(__file__)


def billions(model: ExpertModel) -> float:
    return predict.expert_parameters(model).total / 1e9


def active(model: ExpertModel, lookup: bool = True) -> float:
    """Parameters that a token meets, with or without the embedding."""
    return (predict.expert_parameters(model).active - (0 if lookup else model.lookup * model.width)) / 1e9


def experts_alone(experts: int, layers: int) -> float:
    model = zoo.gshard(experts, layers)
    return model.expert_layers * experts * 2 * model.width * model.expert_hidden / 1e9


def all_experts(experts: int, layers: int) -> int:
    return experts * zoo.gshard(experts, layers).expert_layers


def in_balance(alpha: float, experts: int) -> float:
    logits = 50 * torch.eye(experts)
    best = logits.softmax(-1).topk(1)
    kept = torch.ones_like(best.indices, dtype=torch.bool)
    choice = Choice(logits, logits.softmax(-1), best.indices, best.values)
    return alpha * float(Routing(choice, kept, torch.ones(experts, dtype=torch.int64), experts).load_balancing_loss())


def flops_beside_t5() -> list[float]:
    """Switch-Base's, from those of a model whose experts are all one: T5-Base, whose figure is taken as printed."""
    t5 = replace(zoo.SWITCH_BASE, expert_layers=0)
    router = 2 * zoo.SWITCH_BASE.expert_layers * zoo.SWITCH_BASE.width * zoo.SWITCH_BASE.experts
    same = (expert_flops(zoo.SWITCH_BASE) - router) / expert_flops(t5)
    return [ROWS["switch_flops"]["value"][0], ROWS["switch_flops"]["value"][0] * same]


COMPUTED: dict[str, Callable[..., Any]] = {
    "switch_capacity": lambda tokens, experts, capacity_factor: ExpertConfig(
        8, 8, experts, 1, capacity_factor
    ).capacity(tokens),
    "switch_aux_uniform": in_balance,
    "switch_base": lambda: billions(zoo.SWITCH_BASE),
    "switch_large": lambda: billions(zoo.SWITCH_LARGE),
    "switch_xxl": lambda: billions(zoo.SWITCH_XXL),
    "switch_c": lambda: [predict.expert_parameters(zoo.SWITCH_C).total, zoo.SWITCH_C.experts],
    "switch_flops": flops_beside_t5,
    **{name: all_experts if name.endswith("experts") else experts_alone for name in ROWS if name.startswith("gshard")},
    "mixtral_total": lambda: predict.expert_parameters(zoo.MIXTRAL_8X7B).total,
    "mixtral_total_paper": lambda: billions(zoo.MIXTRAL_8X7B),
    "mixtral_active": lambda: active(zoo.MIXTRAL_8X7B),
    "deepseek_v3_total": lambda: billions(zoo.DEEPSEEK_V3),
    "deepseek_v3_active": lambda: active(zoo.DEEPSEEK_V3, lookup=False),
    "deepseek_v3_active_paper": lambda: active(zoo.DEEPSEEK_V3, lookup=False),
}


test_every_row_is_recomputed, test_published_figure = figures(ROWS, COMPUTED)


def test_what_table_9_prints_of_switch_xxl_does_not_give_its_count() -> None:
    assert billions(replace(zoo.SWITCH_XXL, experts=64)) == pytest.approx(201, abs=1)


def test_a_token_meets_a_fraction_of_the_weights() -> None:
    for model in (*(row for row in vars(zoo).values() if isinstance(row, ExpertModel)), zoo.gshard(2048, 36)):
        held = predict.expert_parameters(model)
        assert held.active < held.total / 3 and expert_flops(model) < 2 * held.active
