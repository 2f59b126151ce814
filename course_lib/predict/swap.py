"""A saved tensor is too much: compute it again, or carry it to DRAM and back? Both in seconds, and where they meet."""

from __future__ import annotations

from course_kit.units import Ratio, Seconds
from course_lib.predict.setup import not_negative, positive


def swap_time(nbytes: int, link_bytes_per_s: float) -> Seconds:
    """Seconds to send a tensor to DRAM and to fetch it back, if nothing else happens meanwhile: 2n/b.

    Raises:
        ValueError: the link has no speed, or there are less than 0 bytes.
    """
    not_negative(nbytes=nbytes)
    positive(link_bytes_per_s=link_bytes_per_s)
    return Seconds(2 * nbytes / link_bytes_per_s)


def recompute_time(flops: int, flops_per_s: float) -> Seconds:
    """Seconds to compute it again at `flops_per_s`.

    Raises:
        ValueError: the device has no speed, or there are less than 0 operations.
    """
    not_negative(flops=flops)
    positive(flops_per_s=flops_per_s)
    return Seconds(flops / flops_per_s)


def swap_break_even(flops_per_s: float, link_bytes_per_s: float) -> Ratio:
    """FLOPs per saved byte from which on swapping is faster than computing again: 2 · speed / bandwidth.

    Raises:
        ValueError: a speed is not positive.
    """
    positive(flops_per_s=flops_per_s, link_bytes_per_s=link_bytes_per_s)
    return Ratio(2 * flops_per_s / link_bytes_per_s)
