"""A saved tensor is too much: compute it again, or carry it to DRAM and back? Where the two take equally long."""

from __future__ import annotations

from course_kit.units import Ratio
from course_lib.predict.setup import positive


def swap_break_even(flops_per_s: float, link_bytes_per_s: float) -> Ratio:
    """FLOPs per saved byte from which on swapping is faster than computing again: 2 · speed / bandwidth.

    Raises:
        ValueError: a speed is not positive.
    """
    positive(flops_per_s=flops_per_s, link_bytes_per_s=link_bytes_per_s)
    return Ratio(2 * flops_per_s / link_bytes_per_s)
