"""A roofline: the time of work on a device that multiplies at one rate and moves bytes at another.

Work of F FLOPs that moves n bytes takes at least F / peak seconds of multiplying and n / bandwidth seconds of moving.
If both overlap the work takes the larger of the two: its rate is min(peak, F/n · bandwidth); F/n is its *intensity*
(Williams et al. 2009). Beside these two bounds stands a third, the overhead: the cost of each call of any size.
"""

from __future__ import annotations

from course_kit.units import FlopsPerSecond, Ratio


def ridge(flops_per_s: float, bytes_per_s: float) -> Ratio:
    """FLOPs a byte from which on multiplying takes longer than moving: the roof's corner.

    Raises:
        ValueError: a rate is not positive.
    """
    if flops_per_s <= 0 or bytes_per_s <= 0:
        raise ValueError(f"{flops_per_s} FLOP/s and {bytes_per_s} bytes/s given: both must be positive")
    return Ratio(flops_per_s / bytes_per_s)


def attainable(intensity: float, flops_per_s: float, bytes_per_s: float) -> FlopsPerSecond:
    """The highest rate at `intensity` FLOPs a byte: min(peak, intensity · bandwidth)."""
    return FlopsPerSecond(flops_per_s * min(1, intensity / ridge(flops_per_s, bytes_per_s)))


def decode_intensity(parameters: int, batch_size: int, cached_bytes: float, element_bytes: int = 2) -> Ratio:
    """FLOPs a byte of decoding one token for each of `batch_size` sequences.

    Every parameter is read once and used in one multiply-add a sequence; every sequence reads its own cache, in which
    each number is used once, too: 2 · batch · (N + c) FLOPs for e · (N + batch · c) bytes, with c = cached numbers of a
    sequence. Grouped heads use each cached number several times and are not counted here.

    Args:
        parameters: N, all that multiply.
        batch_size: sequences.
        cached_bytes: of all keys and values of *one* sequence.
        element_bytes: of a parameter and of a cached number.
    """
    cached = cached_bytes / element_bytes
    flops = 2 * batch_size * (parameters + cached)
    return Ratio(flops / (element_bytes * (parameters + batch_size * cached)))


def tokens_a_pass(accepted: float, ahead: int) -> Ratio:
    """Tokens that speculative decoding gets from one pass of the large model, if each draft is right independently.

    With probability `accepted` for each of `ahead` drafted tokens: 1 + a + a² + … + a^ahead; the 1 is the large model's
    own token (Leviathan et al. 2023, eq. 1).

    Raises:
        ValueError: `accepted` is no probability.
    """
    if not 0 <= accepted <= 1:
        raise ValueError(f"accepted={accepted}: it is a probability, from 0 to 1")
    return Ratio(sum(accepted**tokens for tokens in range(ahead + 1)))
