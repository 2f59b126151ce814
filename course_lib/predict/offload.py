"""States that leave a device, and the price: bytes a parameter, arithmetic intensity, efficiency of a link.

With Ψ parameters in 16 bits and AdamW, 16Ψ bytes of model states can lie on the device or in main memory (Ren et al.
2021, ZeRO-Offload, §3). A link's bytes a second times the FLOPs that wait for a byte, its arithmetic intensity, are
FLOPs a second; against the device's they give the share of time in which the device computes (Rajbhandari et al. 2021,
ZeRO-Infinity, §4). Where the processor updates, its bytes over main memory are a third term beside the device's FLOPs
and the link's bytes. Numbers that are not positive are refused.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from course_kit.units import FlopsPerSecond, Ratio, Seconds
from course_lib.predict.setup import positive

OffloadedState = Literal["parameters", "gradients", "optimizer", "checkpoints"]
CROSSING_BYTES = 4
"""Bytes a parameter over the link in a step of ZeRO-Offload: a gradient out, an updated weight back, 16 bits each."""
UPDATE_BYTES = 32
"""Bytes a parameter over main memory in a step of ZeRO-Offload: a gradient arrives, in fp32 (4); Adam reads it, the
weight and both moments (16), and writes the weight and both moments (12)."""


def flops_a_byte(state: OffloadedState, batch_size: int, seq: int, width: int = 0, blocks_between: int = 1) -> float:
    """Arithmetic intensity: FLOPs of a step for each byte that must travel in it.

    A step with recompute takes 8 FLOPs for each parameter and token. Parameters in 16 bits travel for the forward pass,
    for recompute and for the backward pass, and their gradient once: 8 bytes. Moments and fp32 weights travel in both
    directions: 2 · 16 bytes. A checkpoint of 2·width bytes a token is written and read, between it and the next lie
    12·width² parameters for each block.

    Args:
        state: the one at the far end of the link.
        batch_size, seq: sequences of this device, tokens in each.
        width, blocks_between: for checkpoints; a checkpoint each so many blocks.
    """
    positive(batch_size=batch_size, seq=seq)
    if state in ("parameters", "gradients"):
        return float(batch_size * seq)  # 8 FLOPs a token over 8 bytes
    if state == "optimizer":
        return batch_size * seq / 4  # 8 FLOPs a token over 32 bytes
    if state != "checkpoints":
        raise ValueError(f"what may lie away is parameters, gradients, optimizer or checkpoints; not {state!r}")
    positive(width=width, blocks_between=blocks_between)
    return 24.0 * width * blocks_between  # 8 · 12·width² over 4·width


def link_efficiency(intensity: float, bytes_per_s: float, flops_per_s: float) -> Ratio:
    """The share of the time in which the device computes, if nothing overlaps: i·b / (i·b + speed)."""
    positive(intensity=intensity, bytes_per_s=bytes_per_s, flops_per_s=flops_per_s)
    fed = FlopsPerSecond(intensity * bytes_per_s)  # as fast as the link alone would let the device compute
    return Ratio(fed / (fed + flops_per_s))


def bandwidth_for(efficiency: float, intensity: float, flops_per_s: float) -> float:
    """Bytes a second that a link needs for this efficiency: speed · e / (1 - e) / i."""
    positive(intensity=intensity, flops_per_s=flops_per_s)
    return flops_per_s * _computing_over_waiting(efficiency) / intensity


def _computing_over_waiting(efficiency: float) -> float:
    """Time in which the device computes over time in which it does not: e / (1 - e)."""
    if not 0 < efficiency < 1:
        raise ValueError(f"an efficiency lies between 0 and 1, both excluded; not {efficiency}")
    return efficiency / (1 - efficiency)


class OffloadedStep(NamedTuple):
    """Seconds of a step of ZeRO-Offload in its three places, if nothing is hidden behind anything."""

    card: Seconds
    link: Seconds
    processor: Seconds

    @property
    def efficiency(self) -> Ratio:
        """The share of the time in which the card computes."""
        return Ratio(self.card / sum(self))


def offloaded_step(
    params: float, tokens: float, flops_per_s: float, link_bytes_per_s: float, memory_bytes_per_s: float, gpus: int = 1
) -> OffloadedStep:
    """Seconds of a step with 6 FLOPs for each parameter and token, when the processor runs Adam.

    Args:
        params: parameters of the model.
        tokens: tokens of each GPU.
        flops_per_s: FLOP/s that a GPU reaches.
        link_bytes_per_s: of each GPU's link to main memory.
        memory_bytes_per_s: of main memory, which all GPUs of the machine share.
        gpus: of this machine; with ZeRO-2 each sends and receives its part of the parameters, over a link of its own.
            Their messages to each other are not counted.
    """
    positive(
        params=params, tokens=tokens, flops_per_s=flops_per_s, link_bytes_per_s=link_bytes_per_s,
        memory_bytes_per_s=memory_bytes_per_s, gpus=gpus,
    )  # fmt: skip
    card = 6 * params * tokens / flops_per_s  # without recompute
    link = CROSSING_BYTES * params / gpus / link_bytes_per_s  # all links at once
    return OffloadedStep(Seconds(card), Seconds(link), Seconds(UPDATE_BYTES * params / memory_bytes_per_s))


def tokens_for(
    efficiency: float, flops_per_s: float, link_bytes_per_s: float, memory_bytes_per_s: float, gpus: int = 1
) -> float:
    """Tokens of each GPU in a step of ZeRO-Offload for this efficiency; the size of the model cancels."""
    one = offloaded_step(1, 1, flops_per_s, link_bytes_per_s, memory_bytes_per_s, gpus)  # of one parameter and token
    return _computing_over_waiting(efficiency) * (one.link + one.processor) / one.card
