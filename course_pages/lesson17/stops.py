"""A step that waits for the slowest of many ranks, simulated."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri


def slowest_of(ranks: int, spread: float, steps: int = 1000, seed: int = 0) -> float:
    """The mean step over a rank's, where all wait for the slowest and each rank's is normal with this spread."""
    rng = np.random.default_rng(seed)
    uniform = rng.random(steps) ** (1 / ranks)  # the largest of `ranks` uniform numbers
    return float(1 + spread * ndtri(uniform).mean())
