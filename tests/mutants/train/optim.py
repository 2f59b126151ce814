"""Known-wrong versions of the optimizers."""

from typing import Any

import torch
from torch import Tensor

from course_lib.train.optim import SGD, Adafactor, Adam, Adam8bit, AdamW


class DampenedMomentum(SGD):
    """The running mean of Adam in the place of momentum's running sum: ten times too short."""

    def update(self, weight: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        super().update(weight, gradient * (1 - group["momentum"]), state, group)


class EpsInsideTheRoot(Adam):  # √(v + eps) for √v + eps: hardly different where gradients are large
    def update(self, weight: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        super().update(weight, gradient, state, group | {"eps": group["eps"] ** 0.5})


class CoupledDecay(AdamW):  # Adam's decay under AdamW's name
    decoupled = False


class NoBiasCorrection(Adam):  # runs as if the means had not started from zero
    def update(self, weight: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        if "step" not in state:
            state.update(step=10**6, exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
        super().update(weight, gradient, state, group)


class WholeVariance(Adafactor):  # Adam's v in Adafactor's place: other numbers, and nothing saved
    @staticmethod
    def _square(gradient: Tensor, state: dict, share: float, smallest: float) -> Tensor:
        variance = state.setdefault("variance", torch.zeros_like(gradient))
        return variance.lerp_(gradient.square(), share).clone()


class HoardingAdafactor(Adafactor):
    """The right numbers, while the product of rows and columns stays around."""

    def update(self, weight: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        super().update(weight, gradient, state, group)
        state["estimate"] = state["row_var"] @ state["col_var"]


class HoardingAdam8bit(Adam8bit):  # packs m and v, and keeps them unpacked too
    def update(self, weight: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        super().update(weight, gradient, state, group)
        state["unpacked"] = state["exp_avg"].float()


class BlocksThatKeepTheirPadding(Adam8bit):
    """A view of the packed blocks, with all of the last block under it."""

    def update(self, weight: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        super().update(weight, gradient, state, group)
        padded = torch.zeros(-(-weight.numel() // 256) * 256, dtype=torch.int8)
        padded[: weight.numel()] = state["exp_avg"]
        state["exp_avg"] = padded[: weight.numel()]


WRONG_NUMBERS = [
    ("SGD", DampenedMomentum),
    ("Adam", EpsInsideTheRoot),
    ("Adam", NoBiasCorrection),
    ("AdamW", CoupledDecay),
    ("Adafactor", WholeVariance),
]
"""(the class whose place it takes, mutant)"""

WRONG_BYTES = [
    (WholeVariance, lambda rows, columns: 4 * (rows + columns)),
    (HoardingAdafactor, lambda rows, columns: 4 * (rows + columns)),
    (HoardingAdam8bit, lambda rows, columns: 2 * rows * columns + 8 * -(-rows * columns // 256)),
    (BlocksThatKeepTheirPadding, lambda rows, columns: 2 * rows * columns + 8 * -(-rows * columns // 256)),
]
"""(mutant, the bytes that the real one keeps for a matrix)"""


def name_of(value: Any) -> str | None:
    """The mutant's name, for the test's id."""
    return value.__name__ if isinstance(value, type) else None
