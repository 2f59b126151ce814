"""A run that stops at random times, simulated: what checkpoints and repeated work cost, against Young's and Daly's."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri


def simulate(
    interval_s: float, checkpoint_s: float, between_stops_s: float, restart_s: float = 0.0, stops: int = 10_000,
    seed: int = 0,
) -> float:  # fmt: skip
    """The share of the time that was no progress, over `stops` failures.

    The run works `interval_s`, saves for `checkpoint_s`, and so on; a stop throws away what has come since the last
    whole checkpoint, and the run is back `restart_s` later. A stop while it restarts begins the restart anew.
    """
    draws = np.random.default_rng(seed).exponential(between_stops_s, stops)
    running = np.maximum(0.0, draws - restart_s)  # a stop within the restart: nothing was reached
    saved = np.floor(running / (interval_s + checkpoint_s)) * interval_s
    return float(1 - saved.sum() / draws.sum())


def slowest_of(ranks: int, spread: float, steps: int = 1000, seed: int = 0) -> float:
    """The mean step over a rank's, where all wait for the slowest and each rank's is normal with this spread."""
    rng = np.random.default_rng(seed)
    uniform = rng.random(steps) ** (1 / ranks)  # the largest of `ranks` uniform numbers
    return float(1 + spread * ndtri(uniform).mean())
