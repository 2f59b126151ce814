"""States that leave a device, and the price: bytes a parameter, arithmetic intensity, efficiency of a link.

With Ψ parameters in 16 bits and AdamW, 16Ψ bytes of model states can lie on the device or in main memory (Ren et al.
2021, ZeRO-Offload, §3). A link's bytes a second times the FLOPs that wait for a byte, its arithmetic intensity, are
FLOPs a second; against the device's they give the share of time in which the device computes (Rajbhandari et al. 2021,
ZeRO-Infinity, §4). Numbers that are not positive are refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from course_kit.accounts import CATEGORIES
from course_kit.units import Bytes, FlopsPerSecond, Ratio
from course_lib.predict.memory import model_states
from course_lib.predict.setup import Setup, one_of, positive

OffloadedState = Literal["weights", "gradients", "optimizer", "checkpoints"]


def kept_on_device(setup: Setup, away: str | Collection[str]) -> Bytes:
    """Bytes of model states that stay, when one or some of "parameters", "gradients", "optimizer" are moved away."""
    states, moved = model_states(setup), {away} if isinstance(away, str) else set(away)
    for name in moved:
        one_of("away", name, CATEGORIES[:3])
    return sum((states[name] for name in CATEGORIES[:3] if name not in moved), Bytes(0))


def flops_a_byte(state: OffloadedState, batch_size: int, seq: int, width: int = 0, blocks_between: int = 1) -> float:
    """Arithmetic intensity: FLOPs of a step for each byte that must travel in it.

    A step with recompute takes 8 FLOPs for each parameter and token. Weights in 16 bits travel for the forward pass,
    for recompute and for the backward pass, and their gradient once: 8 bytes. Moments and fp32 weights travel in both
    directions: 2 · 16 bytes. A checkpoint of 2·width bytes a token is written and read, between it and the next lie
    12·width² parameters for each block.

    Args:
        state: the one at the far end of the link.
        batch_size, seq: sequences of this device, tokens in each.
        width, blocks_between: for checkpoints; a checkpoint each so many blocks.
    """
    positive(batch_size=batch_size, seq=seq)
    if state in ("weights", "gradients"):
        return float(batch_size * seq)
    if state == "optimizer":
        return batch_size * seq / 4
    if state != "checkpoints":
        raise ValueError(f"what may lie away is weights, gradients, optimizer or checkpoints; not {state!r}")
    positive(width=width, blocks_between=blocks_between)
    return 24.0 * width * blocks_between


def link_efficiency(intensity: float, bytes_per_s: float, flops_per_s: float) -> Ratio:
    """The share of the time in which the device computes, if nothing overlaps: i·b / (i·b + speed)."""
    positive(intensity=intensity, bytes_per_s=bytes_per_s, flops_per_s=flops_per_s)
    fed = FlopsPerSecond(intensity * bytes_per_s)
    return Ratio(fed / (fed + flops_per_s))


def bandwidth_for(efficiency: float, intensity: float, flops_per_s: float) -> float:
    """Bytes a second that a link needs for this efficiency: speed · e / (1 - e) / i."""
    positive(intensity=intensity, flops_per_s=flops_per_s)
    if not 0 < efficiency < 1:
        raise ValueError(f"an efficiency lies between 0 and 1, both excluded; not {efficiency}")
    return flops_per_s * efficiency / (1 - efficiency) / intensity
