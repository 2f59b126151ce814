"""The scale explorer's numbers, limits and picture, all without a browser."""

from __future__ import annotations

import pytest
import torch

from course_lib.numerics import TORCH_DTYPES
from course_lib.train.gradients import GradientSizes
from course_pages.lesson04.explorer import FORMATS, POWERS, ScaleExplorer, scale_data
from tests.train.test_gradient_sizes import counted_by_casting, gpt_gradients

SPREAD = torch.randn(3000, generator=torch.Generator().manual_seed(0)).mul(4).exp2() * 2.0**-20


def test_the_tables_are_what_casting_does():
    gradients = {"gpt": gpt_gradients(), "spread": SPREAD}
    data = scale_data({name: GradientSizes([tensor]) for name, tensor in gradients.items()})
    assert ScaleExplorer.controls()["power"].values == POWERS
    for name, tensor in gradients.items():
        group = data["groups"][name]
        assert sum(group["counts"]) == int((tensor != 0).sum())
        for fmt in FORMATS.values():
            for power, counts in zip(POWERS, group["casts"][fmt.name], strict=True):
                found = counted_by_casting(tensor, fmt, 2.0**power)
                assert counts == [found.flushed, found.subnormal, found.normal, found.overflowed]


def test_borders_are_those_of_torch():
    for name, told in scale_data({"x": GradientSizes([SPREAD])})["formats"].items():
        info, (flushed, normal, beyond) = torch.finfo(TORCH_DTYPES[name]), told["borders"]
        assert 2.0 ** (flushed + 1) == info.smallest_normal * info.eps and 2.0**normal == info.smallest_normal
        assert 2.0 ** (beyond - 1) <= info.max < 2.0**beyond


def test_counts_are_those_of_what_is_shown():
    explorer = ScaleExplorer({"a": [SPREAD], "b": [torch.ones(3)]}, power=4)
    assert explorer.counts == counted_by_casting(SPREAD, FORMATS["fp16"], 16.0)
    explorer.group, explorer.power = "b", 16
    assert (explorer.counts.normal, explorer.counts.overflowed) == (0, 3)
    explorer.number_format = "bf16"
    assert explorer.counts.normal == 3


def test_reach_in_words():
    told = {name: each["reach"] for name, each in scale_data({"x": GradientSizes([SPREAD])})["formats"].items()}
    assert told["fp16"] == ("fp16 (shaded, pale and full): subnormal from 2⁻²⁴, normal from 2⁻¹⁴, inf from about 2¹⁶.")
    assert told["bf16"] == "bf16 has normal numbers from 2⁻¹²⁶ to 2¹²⁸: beyond both ends of this axis."


@pytest.mark.parametrize("nothing", [{}, {"x": [torch.zeros(2)]}])
def test_gradients_that_cannot_be_shown_are_refused(nothing):
    with pytest.raises(ValueError, match="needs some"):
        ScaleExplorer(nothing)
