"""Checks of lesson 04's turns, and the exercises' answers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from course_kit.notebook.your_turn import Function
from course_lib.model.hardware import H100_80GB

READY_MADE = ("softmax", "logsumexp", "softmin", "cross_entropy", "scaled_dot_product_attention")
"""Parts of names: a softmax is also `special_softmax`, `_softmax`, `softmax.int`."""
EXERCISES = (
    100 * 495e12 / H100_80GB.peak("bf16"),
    max(power for power in range(40) if torch.tensor(0.02 * 2.0**power).half().isfinite()),
)
"""Answers to exercises 1 and 2: per cent of the dense peak; the power by which 0.02 stays finite in fp16."""


def check_copies(function: Function) -> None:
    """Three steps with Adam and with SGD: copies as if stepped in fp32, and the model is the copies, rounded."""
    for kind, lr in ((torch.optim.Adam, 1e-5), (torch.optim.SGD, 1e-3)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        copies = [parameter.detach().clone() for parameter in model.parameters()]
        begin, due = copy.deepcopy(copies), copy.deepcopy(copies)
        ours, theirs, parameters = kind(copies, lr=lr), kind(due, lr=lr), list(model.half().parameters())
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(2, 8).half()).square().sum().backward()
            for each, parameter in zip(due, parameters):
                each.grad = parameter.grad.float()  # type: ignore[union-attr]
            theirs.step()
            function(ours, copies, list(parameters))
            assert all(parameter.dtype == torch.float16 for parameter in parameters), "the model should stay in fp16"
        name, moved = kind.__name__, torch.cat([(a != b).flatten() for a, b in zip(copies, begin)]).double().mean()
        assert moved > 0.9, f"{name}: the fp32 copies should move, and {moved:.0%} of their numbers did"
        assert all(torch.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(copies, due)), (
            f"{name}, after three steps: the copies should be where the optimizer alone takes them in fp32"
        )
        same = all((p == c.half()).all() for p, c in zip(parameters, copies))
        assert same, f"{name}: the model should hold the copies, rounded"


class _Watch(TorchFunctionMode):
    """Notes the ready-made functions that were called, and the dtype of every floating-point result."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.dtypes = set[str](), set[torch.dtype]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, result = getattr(func, "__name__", ""), func(*args, **(kwargs or {}))
        self.called |= {name for each in READY_MADE if each in name}
        if isinstance(result, Tensor) and result.is_floating_point():
            self.dtypes.add(result.dtype)
        return result


def check_softmax(function: Function) -> None:
    """Rows far apart, in fp16 and in bf16: each its own softmax, and no wider number on the way."""
    tables = ([[12.0, 11.0, 10.0]], [[1000.0, 1000.0], [0.0, 1.0], [-30.0, -31.0]], [[0.0, 30.0, 0.0, 0.0]] * 2)
    for scores in tables:
        for dtype, close in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
            given, name = torch.tensor(scores).to(dtype), str(dtype)[6:]
            with _Watch() as watch:
                found = function(given.clone())
            assert not watch.called, (
                f"it should be written with exp and a sum, and {', '.join(watch.called)} was called"
            )
            came = " and ".join(sorted({str(each)[6:] for each in (*watch.dtypes, found.dtype)}))
            assert came == name, f"scores in {name}: all of it should stay in {name}, and {came} came up"
            due = torch.tensor(scores).softmax(-1)
            assert found.shape == due.shape, (
                f"{len(scores)} rows: there should be as many, and the shape is {found.shape}"
            )
            row = next(
                (i for i in range(len(scores)) if not torch.allclose(found[i].float(), due[i], atol=close)), None
            )
            assert row is None, f"row {row} of the scores {scores} in {name} became {found[row].tolist()}"


def check_scale(function: Function) -> None:
    """Streaks that are broken, that are twice and three times as long as an interval, and infs in a row, to below 1."""
    for interval, outcomes in ((2, "ggg-gg--g"), (2, "ggggg-gggg"), (3, "gggggggggg--ggg"), (1, "g-gg-------")):
        scaler, due, good = SimpleNamespace(scale=8.0, growth_interval=interval, good=0), 8.0, 0
        for number, outcome in enumerate(outcomes):
            good = good + 1 if outcome == "g" else 0
            grows = outcome == "g" and good % interval == 0
            due = 2 * due if grows else due if outcome == "g" else due / 2
            before = scaler.scale
            function(scaler, outcome == "g")
            told = ", ".join("good" if each == "g" else "inf" for each in outcomes[: number + 1])
            assert scaler.scale == due, (
                f"growth_interval={interval}, and after {told} the scale goes from {before:g} to {scaler.scale:g}"
            )


def check_delayed(function: Function) -> None:
    """Histories that grow, that fall, that are short, that end in a zero or in four, and one of zeros alone."""
    for history in ([1.0], [8.0, 4.0, 2.0, 1.0, 0.5], [0.5, 1.0, 2.0, 4.0, 8.0, 16.0], [9.0, 1.0, 3.0, 1.0, 0.0]):
        for largest in (448.0, 57_344.0):
            taken = float(function(list(history), largest)) * max(history[-4:])
            assert abs(taken - largest) < 1e-6 * largest, (
                f"amax so far {_short(history)}: your scale takes the largest of the last four steps to {taken:g}, and "
                f"the format ends at {largest:g}"
            )
    for history in ([0.0, 0.0], [], [8.0, 0.0, 0.0, 0.0, 0.0]):
        assert function(list(history), 448.0) == 1, f"amax so far {_short(history)}: there is nothing to scale by"


def _short(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers) or "none"


def exercise_3(steps: Sequence[bool], scale: float, growth_interval: int) -> list[float]:
    """The scale after each step if every second overflow in a row halves it, and a streak of good steps doubles it."""
    scales, good, bad = list[float](), 0, 0
    for finite in steps:
        good, bad = (good + 1, 0) if finite else (0, bad + 1)
        if bad == 2:
            scale, bad = scale / 2, 0
        if good == growth_interval:
            scale, good = scale * 2, 0
        scales.append(scale)
    return scales
