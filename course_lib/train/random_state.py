"""The random state of a process: what a run must remember that draws without naming its draws.

Draws that belong to (seed, step, layer), as this course's do (`model/seeds.py`), need none of it. Dropout does.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """Of all generators that a training step may draw from without being told."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any]) -> None:
    """Go on where `random_state` was taken."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def seed_all(seed: int) -> None:
    """Begin streams of their own in all of them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
