"""Known-wrong versions of the mixed-precision recipe."""

from typing import Any

import torch
from torch import Tensor

from course_lib.train.gradients import clip_gradients
from course_lib.train.precision import LossScaler, MasterWeights


class NeverSkips(LossScaler):  # steps with inf in the gradients
    def step(self, optimizer: torch.optim.Optimizer) -> Any:
        if optimizer not in self._overflows:
            self.unscale_(optimizer)
        return optimizer.step()


class NeverUnscales(LossScaler):  # Adam hardly notices, so it goes unnoticed
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        scale, self._scale = self._scale, 1.0
        super().unscale_(optimizer)
        self._scale = scale


class UnscalesTheFirst(LossScaler):
    """Once a step is unscaled, it is unscaled, whichever optimizer comes next; and one overflow stands for all."""

    def step(self, optimizer: torch.optim.Optimizer) -> Any:
        if not self._overflows:
            self.unscale_(optimizer)
        self._overflows.setdefault(optimizer, next(iter(self._overflows.values())))
        return super().step(optimizer)


class GrowsAfterOverflow(LossScaler):  # counts good steps, but not good steps in a row
    def update(self) -> None:
        good, overflow = self._good_steps, any(self._overflows.values())
        super().update()
        if overflow:
            self._good_steps = good


class GrowsToInfinity(LossScaler):  # accepts a scale that fp32 cannot hold
    def update(self) -> None:
        grows = not any(self._overflows.values()) and self._good_steps + 1 == self.growth_interval
        super().update()
        if grows and self._scale * self.growth_factor > torch.finfo(torch.float32).max:
            self._scale = float("inf")


def clip_then_unscale(scaler: LossScaler, optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """The scaled gradient is always too long."""
    length = clip_gradients(optimizer, max_norm)
    scaler.unscale_(optimizer)
    return length


def clip_without_unscaling_twice(scaler: LossScaler, optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Unscales, but clips to the scaled limit."""
    scaler.unscale_(optimizer)
    return clip_gradients(optimizer, max_norm * scaler.get_scale())


class NarrowMaster(MasterWeights):  # the copy has no more digits than the weight
    def update_parameter(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        super().update_parameter(parameter, gradient, state, group)
        state["master"].copy_(parameter)


class RoundsTheGradient(MasterWeights):  # unscales in 16 bits: what loss scaling saved is lost
    def update_parameter(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        super().update_parameter(parameter, gradient.to(parameter.dtype), state, group)


class ForgetsToWriteBack(MasterWeights):  # the copy learns, the model does not
    def update_parameter(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        self.rule.update(state["master"], gradient.float(), state, group)


SCALERS = [NeverSkips, NeverUnscales, GrowsAfterOverflow, GrowsToInfinity]
CLIPS = [clip_then_unscale, clip_without_unscaling_twice]
MASTERS = [NarrowMaster, RoundsTheGradient, ForgetsToWriteBack]
