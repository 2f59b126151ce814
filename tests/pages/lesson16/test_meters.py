"""Lesson 16's meters and slow steps: counts against formulas, five sins that a profile shows, pictures that say so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from course_lib import predict
from course_lib.model.gpt import GPT, GPTConfig
from course_pages.lesson16 import meters, slow_steps


def test_an_operation_touches_what_it_reads_and_writes_and_a_view_nothing() -> None:
    x, w = torch.ones(8, 16), torch.ones(16, 4)
    work = meters.touched(lambda: F.softmax((x @ w).T.reshape(4, 8) + 1, -1))
    assert work["contraction"] == meters.Work(2 * 8 * 16 * 4, 4 * (128 + 64 + 32), 1)
    assert work["element-wise"] == meters.Work(32, 4 * 64, 1)  # + 1; turning is a view
    assert work["normalization"] == meters.Work(5 * 32, 4 * 64, 1)
    assert work["contraction"].intensity == 1024 / 896
    assert meters.touched(lambda: w.add_(1))["element-wise"].bytes == 2 * 4 * 64  # in place
    names = "addmm", "native_layer_norm_backward", "_softmax", "gelu"
    assert [meters.kind_of(name) for name in names] == ["contraction", *["normalization"] * 2, "element-wise"]


def test_contractions_of_a_step_are_the_formula_s() -> None:
    config = GPTConfig(2, 32, 4, 50, 16)
    model, tokens = GPT(config), torch.zeros(3, 17, dtype=torch.int64)
    work = meters.touched(lambda: model(tokens[:, :-1], tokens[:, 1:]).backward())
    assert work["contraction"].flops == predict.step_flops(predict.Setup(config, batch_size=3, seq=16))


def test_shares_add_up_and_nothing_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(64, 64)
    found = meters.time_shares(lambda: (x @ x).softmax(-1) + 1)
    assert sum(found.values()) == pytest.approx(1) and set(found) == set(meters.KINDS)
    assert capfd.readouterr().err == ""


def test_every_sinner_computes_what_the_quick_one_does_and_its_profile_tells() -> None:
    given = slow_steps.inputs()
    due = slow_steps.quick(*given)
    sins = {"a": ("mm", 768), "b": ("item", 768), "c": ("_to_copy", 3), "d": ("clone", 12), "e": ("mul", 18)}
    virtue = meters.profiled(slow_steps.quick, *given)
    for sinner in slow_steps.SLOW:
        torch.testing.assert_close(sinner(*given).float(), due, rtol=1e-3, atol=0)
        name, calls = sins[sinner.__name__]
        found = meters.profiled(sinner, *given)
        assert found[name][0] >= calls and virtue.get(name, (0, 0.0))[0] <= 3
    assert slow_steps.c(*given).dtype == torch.float64
