"""What a whole training run costs: operations, days, and the share of the peak that it reached.

Lesson 02 reads rows of published runs with these formulas; lesson 14 takes them apart.
"""

from __future__ import annotations

from course_lib.units import Flops, Seconds


def training_flops(parameters: float, tokens: float, recompute: bool = False) -> Flops:
    """C = 6·N·D: two operations per parameter and token forward, four backward (Kaplan et al. 2020, §2.1).

    With `recompute` it is 8·N·D: the forward pass is paid for twice (Narayanan et al. 2021, eq. 4). Attention's s² part
    is left out; `step_flops` has it.
    """
    return Flops(round((8 if recompute else 6) * parameters * tokens))


def training_time(flops: float, devices: int, flops_per_s: float) -> Seconds:
    """Duration of a run on `devices` that each *reach* `flops_per_s` (peak × utilization, not the peak).

    Raises:
        ValueError: no devices, or no speed.
    """
    if devices < 1 or flops_per_s <= 0:
        raise ValueError(f"devices={devices}, flops_per_s={flops_per_s}: both must be positive")
    return Seconds(flops / (devices * flops_per_s))


def utilization(flops: float, seconds: float, devices: int, peak_flops_per_s: float) -> float:
    """The share of the dense peak that `flops` in `seconds` amount to.

    It is MFU when `flops` are the model's (6·N·D, `step_flops`), and HFU when they include what was computed twice
    (Chowdhery et al. 2022, appendix B).
    """
    return flops / (seconds * devices * peak_flops_per_s)
