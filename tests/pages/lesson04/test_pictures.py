"""Pictures of mixed precision: what is drawn are the numbers that were given, and each picture is told in words."""

from __future__ import annotations

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from course_lib.model import hardware
from course_lib.numerics import BF16, FP16
from course_lib.train.gradients import GradientSizes
from course_pages.lesson04 import pictures as figures

SIZES = GradientSizes([torch.tensor([2.0**-30, 2.0**-20, 2.0**-20, 1.0, 2.0**20])])


def bars(axes) -> dict[float, tuple[float, str]]:
    rectangles = [bar for bar in axes.containers[0] if isinstance(bar, Rectangle) and bar.get_height()]
    return {bar.get_x(): (bar.get_height(), to_hex(bar.get_facecolor()).upper()) for bar in rectangles}


@pytest.mark.parametrize(("scale", "fates"), [
    (1.0, ["becomes 0", "subnormal", "normal", "inf"]),
    (2.0**8, ["subnormal", "normal", "normal", "inf"]),
    (2.0**16, ["normal", "normal", "inf", "inf"]),
])  # fmt: skip
def test_bars_stand_where_the_scaled_numbers_are_and_tell_their_fate(scale, fates):
    (axes,) = figures.gradient_histograms({"x": (SIZES, scale)}, FP16, caption="c").figure.axes
    shift = torch.tensor(scale).log2().item()
    expected = {place + shift: count for place, count in {-30: 1, -20: 2, 0: 1, 20: 1}.items()}
    drawn = bars(axes)
    assert {place: height for place, (height, _) in drawn.items()} == expected
    assert [color for _, color in drawn.values()] == [figures.FATES[fate] for fate in fates]


def test_bf16_loses_nothing():
    (axes,) = figures.gradient_histograms({"x": (SIZES, 1.0)}, BF16, caption="c").figure.axes
    assert {color for _, color in bars(axes).values()} == {figures.FATES["normal"]}


def test_the_hunt_marks_skipped_steps_at_their_scale():
    (axes,) = figures.scale_hunt([8.0, 4.0, 2.0, 4.0], [0, 1], [8.0] * 4, caption="c").figure.axes
    theirs, ours, crosses = axes.lines
    assert list(ours.get_ydata()) == [8, 4, 2, 4] and list(theirs.get_ydata()) == [8] * 4  # type: ignore[arg-type]
    assert list(crosses.get_xdata()) == [0, 1] and list(crosses.get_ydata()) == [8, 4]  # type: ignore[arg-type]


def test_peaks_tell_dense_and_sparse_apart():
    gpus = [hardware.A100_80GB, hardware.V100_16GB]
    figure = figures.gpu_peaks(gpus, ["fp32", "fp16", "bf16"], caption="c").figure
    texts = [[text.get_text().strip() for text in axes.texts] for axes in figure.axes]
    assert texts == [["312 (sparse 624)", "312 (sparse 624)", "20"], ["125", "16"]]
