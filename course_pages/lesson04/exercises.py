"""The right answers of lesson 04's exercises, computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from course_lib.model.hardware import H100_80GB


def share_of_peak(reached: float) -> float:
    """Per cent of an H100's dense bf16 peak that `reached` FLOP/s are."""
    return 100 * reached / H100_80GB.peak("bf16")


def highest_power(largest: float) -> int:
    """The highest power of two by which `largest` may be multiplied in fp16."""
    return max(power for power in range(40) if torch.tensor(largest * 2.0**power).half().isfinite())


def patient_scales(steps: Sequence[bool], scale: float, growth_interval: int) -> list[float]:
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
