"""What ZeRO-Offload and ZeRO-Infinity print, computed again by this library; `offload.json` holds each figure."""

from collections.abc import Callable
from typing import Any

import pytest

from course_lib import predict
from course_lib.predict import Setup
from tests.predict.papers import kept_on_device

from .rows import rows_of, within

ROWS = rows_of(__file__)


def bytes_a_parameter(away: list[str]) -> list[float]:
    setup = Setup(1e9, 1, precision="mixed")
    kept = kept_on_device(setup, set(away))
    return [kept / 1e9, kept_on_device(setup, set()) / kept]


def largest_model(params: float) -> float:
    return kept_on_device(Setup(params, 1, precision="mixed"), {"gradients", "optimizer"}).to("GB")


def efficiency(bytes_per_s: float, flops_per_s: float, **state: Any) -> float:
    return predict.link_efficiency(predict.flops_a_byte(**state), bytes_per_s, flops_per_s)


def bandwidth(efficiency: float, flops_per_s: float, **state: Any) -> float:
    return predict.bandwidth_for(efficiency, predict.flops_a_byte(**state), flops_per_s)


FORMULAS: dict[str, Callable[..., Any]] = {
    "zero_offload_t1": bytes_a_parameter,
    "zero_offload_13b": largest_model,
    "zero_infinity_efficiency": efficiency,
    "zero_infinity_bandwidth": bandwidth,
}


@pytest.mark.parametrize("name", ROWS)
def test_the_printed_figure(name: str) -> None:
    formula = next(formula for prefix, formula in FORMULAS.items() if name.startswith(prefix))
    assert formula(**ROWS[name]["inputs"]) == within(ROWS[name])
