"""Failures of large runs: the time between stops, the best checkpoint interval, and the share of time lost."""

from __future__ import annotations

import math

from course_kit.units import Ratio, Seconds
from course_lib.predict.setup import not_negative, positive


def mean_time_between_stops(gpu_seconds: float, gpus: int) -> Seconds:
    """Seconds between two stops of a run on `gpus`, if one GPU, with its share of all else, stops every `gpu_seconds`.

    Llama 3 405B: 419 unexpected stops in 54 days on 16,384 GPUs (Grattafiori et al. 2024, §3.3.4) are one in 3.1 hours,
    and so one in 5.8 years a GPU.
    """
    positive(gpu_seconds=gpu_seconds, gpus=gpus)
    return Seconds(gpu_seconds / gpus)


def young(checkpoint_s: float, between_stops_s: float) -> Seconds:
    """The checkpoint interval that loses least, √(2δM), where a checkpoint takes δ (Young 1974)."""
    positive(checkpoint_s=checkpoint_s, between_stops_s=between_stops_s)
    return Seconds(math.sqrt(2 * checkpoint_s * between_stops_s))


def daly(checkpoint_s: float, between_stops_s: float) -> Seconds:
    """Young's interval to a higher order, √(2δM)·(1 + ⅓√(δ/2M) + δ/18M) - δ; M where δ is at least 2M (Daly 2006)."""
    positive(checkpoint_s=checkpoint_s, between_stops_s=between_stops_s)
    share = checkpoint_s / (2 * between_stops_s)
    if share >= 1:
        return Seconds(between_stops_s)
    interval = math.sqrt(2 * checkpoint_s * between_stops_s) * (1 + math.sqrt(share) / 3 + share / 9)
    return Seconds(interval - checkpoint_s)


def waste(interval_s: float, checkpoint_s: float, between_stops_s: float, restart_s: float = 0.0) -> Ratio:
    """The share of a run's time that is no progress: checkpoints, work done twice, restarts.

    With stops at random times, M apart in the mean, a stretch of τ + δ is tried until it passes, and each failure costs
    the restart R besides: M·e^(R/M)·(e^((τ+δ)/M) - 1) for τ seconds of progress (Daly 2006, eq. 13). For δ far
    below τ, and τ far below M, that is about δ/τ + (τ/2 + R)/M.
    """
    positive(interval_s=interval_s, between_stops_s=between_stops_s)
    not_negative(checkpoint_s=checkpoint_s, restart_s=restart_s)
    if interval_s + checkpoint_s + restart_s > 700 * between_stops_s:
        return Ratio(1.0)  # e^700 and more is beyond a float
    stretch = math.expm1((interval_s + checkpoint_s) / between_stops_s)
    spent = between_stops_s * math.exp(restart_s / between_stops_s) * stretch
    return Ratio(1 - interval_s / spent)
