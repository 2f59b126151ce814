"""Pictures of mixed precision: what is drawn are the numbers that were given, and each picture is told in words."""

from __future__ import annotations

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from course_lib.figures import precision as figures
from course_lib.figures.style import png
from course_lib.model import hardware
from course_lib.numerics import BF16, FP16
from course_lib.train.gradients import GradientSizes

SIZES = GradientSizes([torch.tensor([2.0**-30, 2.0**-20, 2.0**-20, 1.0, 2.0**20])])
LOSSES = {"fp32": [3.0] * 15 + [2.0] * 25, "fp16": [3.0] * 40}


def bars(axes) -> dict[float, tuple[float, str]]:
    rectangles = [bar for bar in axes.containers[0] if isinstance(bar, Rectangle) and bar.get_height()]
    return {bar.get_x(): (bar.get_height(), to_hex(bar.get_facecolor()).upper()) for bar in rectangles}


@pytest.mark.parametrize(("scale", "fates"), [
    (1.0, ["becomes 0", "subnormal", "normal", "inf"]),
    (2.0**8, ["subnormal", "normal", "normal", "inf"]),
    (2.0**16, ["normal", "normal", "inf", "inf"]),
])  # fmt: skip
def test_bars_stand_where_the_scaled_numbers_are_and_tell_their_fate(scale, fates):
    (axes,) = figures.draw_histograms({"x": (SIZES, scale)}, FP16).axes
    shift = torch.tensor(scale).log2().item()
    expected = {place + shift: count for place, count in {-30: 1, -20: 2, 0: 1, 20: 1}.items()}
    drawn = bars(axes)
    assert {place: height for place, (height, _) in drawn.items()} == expected
    assert [color for _, color in drawn.values()] == [figures.FATES[fate] for fate in fates]


def test_bf16_loses_nothing():
    (axes,) = figures.draw_histograms({"x": (SIZES, 1.0)}, BF16).axes
    assert {color for _, color in bars(axes).values()} == {figures.FATES["normal"]}


def test_distances_are_from_the_first_recipe():
    left, right = figures.draw_recipes(LOSSES).axes
    assert left.lines[1].get_ydata()[-1] == pytest.approx(3.0)  # type: ignore[index]
    assert [line.get_ydata()[-1] for line in right.lines] == pytest.approx([0, 50])  # type: ignore[index]


def test_the_hunt_marks_skipped_steps_at_their_scale():
    (axes,) = figures.draw_scale_hunt([8.0, 4.0, 2.0, 4.0], [0, 1], [8.0] * 4).axes
    theirs, ours, crosses = axes.lines
    assert list(ours.get_ydata()) == [8, 4, 2, 4] and list(theirs.get_ydata()) == [8] * 4  # type: ignore[arg-type]
    assert list(crosses.get_xdata()) == [0, 1] and list(crosses.get_ydata()) == [8, 4]  # type: ignore[arg-type]


def test_peaks_tell_dense_and_sparse_apart():
    figure = figures.draw_peaks([hardware.A100_80GB, hardware.V100_16GB], ["fp32", "fp16", "bf16"])
    texts = [[text.get_text().strip() for text in axes.texts] for axes in figure.axes]
    assert texts == [["312 (sparse 624)", "312 (sparse 624)", "20"], ["125", "16"]]


def test_each_picture_is_shown_with_caption_and_words(monkeypatch):
    shown = []
    monkeypatch.setattr(
        figures, "present", lambda figure, *, caption, alt: shown.append((png(figure)[:4], caption, alt))
    )
    figures.histograms({"x": (SIZES, 1.0)}, FP16, caption="c")
    figures.recipes(LOSSES, caption="c")
    figures.scale_hunt([8.0, 4.0], [0], [8.0, 4.0], caption="c")
    figures.scale_hunt([8.0, 4.0], [0], [8.0, 8.0], caption="c")
    figures.peaks([hardware.A100_80GB], ["fp16"], caption="c")
    assert [(start, caption) for start, caption, _ in shown] == [(b"\x89PNG", "c")] * 5
    words = ["20.0 % becomes 0, 40.0 % subnormal", "fp16 +50.0 %", "is the same", "is another", "fp16 312"]
    assert all(part in alt for part, (_, _, alt) in zip(words, shown, strict=True))
