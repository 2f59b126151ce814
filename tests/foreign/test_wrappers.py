"""Models that nobody here wrote, under every wrapper: against PyTorch's own wrapper, and against a single process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from course_kit import ranks
from tests.foreign import runs
from tests.foreign.models import DEFAULT, MODELS, over
from tests.foreign.runs import How
from tests.mutants.parallel import zero as wrong
from tests.mutants.parallel import zero3 as wrong3

HOWS: tuple[How, ...] = ("naive", "bucketed", "zero1", "zero2", "zero3")
CUT: tuple[How, ...] = ("bucketed", "zero2", "zero3")
STEPS = 3
HANDED_ON = "t5"
"""Its blocks hand a tensor that needs a gradient from one to the next, so where the summands of that gradient meet
depends on where the graph was cut: their order does."""
IN_SEGMENTS = ["gpt2", "llama", "vit", "mixtral", "deepseek", "clip", "toy transformer", "toy experts"]
"""Whose loop is `x = layer(x, …)`."""


def on_ranks(check: Callable[..., Any], *args: Any, world_size: int = 2) -> Any:
    """The first rank's answer."""
    return ranks.run(check, *args, world_size=world_size, timeout_s=120, diagnose=False)[0]


def roundings(dtype: torch.dtype, shares: int, steps: int = STEPS) -> float:
    """How far two orders of one sum may lead apart: both round each of `shares` terms in each step.

    Weights and gradients are below 8 here, and `runs.ADAM` enlarges nothing.
    """
    return 2 * 8 * torch.finfo(dtype).eps * shares * steps


MAY_ROUND: dict[str, tuple[How, ...]] = {"recomputed": CUT, "plain": ("zero3",), "in 16 bits": ("zero3",)}
"""Ways in which `HANDED_ON` may differ by the order of a sum, and under which wrappers."""
CASES: dict[str, tuple[Iterable[str], tuple[How, ...], Any, bool]] = {
    "plain": (MODELS, HOWS, None, False),
    "recomputed": ([name for name in MODELS if name not in ("resnet", "nested")], CUT, runs.recomputed, False),
    "in segments": (IN_SEGMENTS, CUT, runs.in_segments, False),
    "in 16 bits": (MODELS, CUT, None, True),
}
"""What is done with the models, under which wrappers, how each is changed, and whether operations run in 16 bits."""


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=pytest.mark.nightly if way != "plain" or name not in DEFAULT else ())
        for way, (names, *_) in CASES.items()
        for name in names
    ],
)
def test_two_ranks_end_with_the_bits_of_pytorchs_wrapper(name: str, way: str) -> None:
    """The mean of two numbers is one rounding, in whichever order."""
    _, hows, change, cast = CASES[way]
    for how, off in on_ranks(runs.against_pytorch, name, hows, STEPS, change, cast).items():
        loose = name == HANDED_ON and how in MAY_ROUND.get(way, ())
        limit = roundings(torch.float32, shares=2) if loose else 0.0
        worst = {weight: number for weight, number in off.items() if not number <= limit}
        assert not worst, f"{name}, {way}, under {how}: {worst}"


@pytest.mark.parametrize("name", over(MODELS))
def test_each_step_of_three_ranks_in_two_passes_is_a_single_process_step(name: str) -> None:
    """No size divides by three."""
    for how, (off, where) in on_ranks(runs.against_alone, name, HOWS, STEPS, 2, world_size=3).items():
        assert off <= roundings(torch.float64, shares=6), f"{name} under {how} is off by {off:.1e} in {where}"


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["gpt2", "llama", "deepseek", "resnet", "toy transformer"])
@pytest.mark.parametrize("how", ["zero1", "zero2", "zero3"])
def test_weights_in_16_bits_are_stepped_in_32(name: str, how: How) -> None:
    """Three ranks' bf16 gradients, added up in fp32, step fp32 weights that the model has rounded."""
    off = on_ranks(runs.against_masters, name, how, STEPS, world_size=3)
    assert off == {}, f"{name} under {how}: {off}"


WRONG: list[tuple[How, type]] = [
    *(("zero2", mutant) for mutant in wrong.WRONG_WEIGHTS),
    *(("zero3", mutant) for mutant in wrong3.WEIGHTS),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("how", "mutant"), WRONG)
def test_known_wrong_wrappers_are_noticed(how: How, mutant: type) -> None:
    """By the single process, far beyond any rounding."""
    off, _ = on_ranks(runs.against_alone, "llama", (how,), STEPS, 2, mutant, world_size=3)[how]
    assert off > 1e6 * roundings(torch.float64, shares=6)
