"""Known-wrong pipelines. Each class breaks one thing that `tests/pipeline/pipeline_checks.py` must notice."""

from typing import Any

from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.messages import PipelineMessages
from course_lib.pipeline.schedule import Action, Message, Schedule, gpipe


class WithoutShare(Pipeline):
    """Forgets 1/m: the gradients of all micro-batches add up to m times the mean."""

    def _count_loss(self, loss: Tensor, share: float) -> Tensor:
        super()._count_loss(loss, share)
        return loss


class EqualShares(Pipeline):  # 1/m for each micro-batch, however many tokens it has
    def _count_loss(self, loss: Tensor, share: float) -> Tensor:
        return super()._count_loss(loss, 1 / self.schedule.micro_batches)


class EndsNotAdded(Pipeline):
    """Leaves the first and the last stage with their own part of the tied embedding's gradient."""

    def _add_tied_gradients(self) -> None:
        pass


class GPipeInDisguise(Pipeline):
    """Takes any schedule and runs GPipe: right gradients, and all micro-batches in flight."""

    def __init__(self, schedule: Schedule, stages: dict[int, nn.Module], **kwargs: Any) -> None:
        super().__init__(gpipe(schedule.stages, schedule.micro_batches), stages, **kwargs)


class Swapping(PipelineMessages):
    """Sends every first message of two behind the second. Gloo pairs them with the receives in silence."""

    held: tuple[Message, Tensor] | None = None

    def send(self, message: Message | None, tensor: Tensor | None) -> None:
        if message is None or tensor is None or message.what == "gradient":
            super().send(message, tensor)
        elif self.held is None:
            self.held = message, tensor
        else:
            super().send(message, tensor)
            super().send(*self.held)
            self.held = None


class SendsSwapped(Pipeline):  # sends activations in another order than they are received in
    def _begin(self, micro_batches: Any, tokens: float | None) -> PipelineMessages:
        mail = super()._begin(micro_batches, tokens)
        mail.__class__ = Swapping
        return mail


class BackwardInOne(Pipeline):  # Zero-bubble by name: makes the weights' gradients in B at once
    def _do(self, action: Action, received: Tensor | None) -> Tensor | None:
        made = super()._do(action, received)
        if action.kind == "B":
            flight = self._in_flight[action.stage, action.micro_batch]
            while flight.later:
                flight.later.pop()()
        return made


class NewestWeights(Pipeline):
    """PipeDream without a stash: the backward pass uses whatever the weights are by then. Autograd would object, since
    a parameter that it saved has changed; here the change is hidden from it."""

    def _version_of(self, stage: nn.Module) -> dict[str, Tensor]:
        return {}

    def _update(self, stage: int) -> None:
        with _unsafe_preserve_version_counter(tuple(self.stages[stage].parameters())):
            super()._update(stage)


class StepsAtTheEnd(Pipeline):
    """PipeDream without asynchrony: no update is seen before the last micro-batch."""

    def _update(self, stage: int) -> None:
        if not self._in_flight:
            super()._update(stage)


class ACopyForEach(Pipeline):
    """Stashes a copy for each micro-batch in flight, though some use the same version."""

    def _version_of(self, stage: nn.Module) -> dict[str, Tensor]:
        return {name: weight.detach().clone().requires_grad_() for name, weight in super()._version_of(stage).items()}


WRONG_GRADIENTS = [WithoutShare, EqualShares, EndsNotAdded, SendsSwapped]
WRONG_VERSIONS = [NewestWeights, StepsAtTheEnd, ACopyForEach]
