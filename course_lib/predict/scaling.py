"""The price of a whole training run: operations, days, and the share of the peak that it reached.

Also the batch size beyond which a larger batch stops helping, which bounds data parallelism. Numbers that are negative
are refused, as is 0 for devices, times, speeds and batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_kit.units import Count, Flops, FlopsPerSecond, Ratio, Seconds
from course_lib.model.refusals import one_of
from course_lib.predict.setup import Recompute, not_negative, positive


def training_flops(parameters: float, tokens: float, recompute: Recompute = "none") -> Flops:
    """C = 6·N·D: two operations per parameter and token forward, four backward (Kaplan et al. 2020, §2.1).

    With `recompute="full"` C is 8·N·D: the forward pass is paid for twice (Narayanan et al. 2021, eq. 4). Attention's
    s² part is left out; `step_flops` has it, and so only that knows "selective".
    """
    not_negative(parameters=parameters, tokens=tokens)
    one_of("recompute", recompute, ("none", "full"))
    return Flops(round((8 if recompute == "full" else 6) * parameters * tokens))


def utilization(flops: float, seconds: float, devices: int, peak_flops_per_s: float) -> float:
    """The share of the dense peak that `flops` in `seconds` amount to.

    The share is MFU when `flops` are the model's (6·N·D, `step_flops`), and HFU when they include recomputed ones
    (Chowdhery et al. 2022, appendix B).

    Raises:
        ValueError: a share above 1, so one of the numbers is wrong (often the peak's unit).
    """
    not_negative(flops=flops)
    positive(seconds=seconds, devices=devices, peak_flops_per_s=peak_flops_per_s)
    share = flops / (seconds * devices * peak_flops_per_s)
    if share > 1:
        raise ValueError(
            f"{Flops(round(flops))} in {Seconds(seconds)} on {devices} devices of "
            f"{FlopsPerSecond(peak_flops_per_s)} are {share:,.2f} times the peak: check the units of all four"
        )
    return share


@dataclass(frozen=True)
class NoiseScale:
    """The length of the true gradient, and the spread of single examples' gradients around it."""

    signal: float  # |G|², the squared length of the true gradient
    noise: float  # tr(Σ), the variance of one example's gradient, summed over all parameters

    @property
    def batch_size(self) -> float:
        """B_simple = tr(Σ) / |G|²: in a batch of so many examples, noise and signal are equally long.

        Raises:
            ValueError: the signal is not positive: too few steps were averaged.
        """
        positive(signal=self.signal)
        return self.noise / self.signal


def noise_scale(small: tuple[int, float], large: tuple[int, float]) -> NoiseScale:
    """The noise scale from the mean squared lengths of gradients of two batch sizes.

    A batch of B has E|G_B|² = |G|² + tr(Σ)/B: two equations, two unknowns. Data parallelism has both for nothing, the
    rank's own gradient before the all-reduce and the mean behind it. Average many steps before you divide. `small` and
    `large` are (examples in the batch, mean of |gradient|²). Source: McCandlish et al. 2018, appendix A.1.

    Raises:
        ValueError: the second batch is not larger than the first.
    """
    (few, few_squared), (many, many_squared) = small, large
    if not 0 < few < many:
        raise ValueError(f"noise_scale needs a small and a large batch, in this order; given {few} and {many}")
    signal = (many * many_squared - few * few_squared) / (many - few)  # tr(Σ) cancels
    return NoiseScale(signal, (few_squared - many_squared) / (1 / few - 1 / many))  # |G|² cancels


def steps_and_examples(batch_size: float, critical: float) -> tuple[Ratio, Ratio]:
    """The price of a batch size: (steps / fewest possible, examples / fewest possible).

    1 + B_crit/B and 1 + B/B_crit, so at the critical batch size a run takes twice the fewest steps and twice the fewest
    examples. Source: McCandlish et al. 2018, eq. 2.11 and appendix D.
    """
    positive(batch_size=batch_size, critical=critical)
    return Ratio(1 + critical / batch_size), Ratio(1 + batch_size / critical)  # their product, each less 1, is 1


def critical_batch_tokens(loss: float) -> Count:
    """B_crit = 2.1·10^8 / L^(1/0.21) tokens, for a language model at a loss of L nats per token.

    Source: Kaplan et al. 2020, eq. 1.4 with the fitted values of Table 5 (eq. 1.4 itself rounds the factor to 2·10^8).
    Fitted with models of 2019 and Adam; newer measurements differ, so take it for an order of magnitude.
    """
    if loss <= 0:
        raise ValueError(f"loss={loss}: a cross-entropy in nats per token is positive")
    return Count(round(2.1e8 / loss ** (1 / 0.21)))
