"""The pipeline executor: each rank holds some stages of the model and carries out its own actions of a schedule.

    stages = {rank: GPTStage(config, layers[rank])}
    pipeline = Pipeline(one_f_one_b(4, 8), stages)
    loss = pipeline.forward_backward(micro_batches)
    optimizer.step()                 # over the parameters of this rank's stages

With a synchronous schedule, the gradients are those of `train_step` on all micro-batches at once. With an asynchronous
one (`pipedream`), the optimizer steps inside `forward_backward`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call

from course_kit.communications import backend_of
from course_lib.collectives.operators import Group
from course_lib.model.text import Batch
from course_lib.pipeline.messages import PipelineMessages, meet, one_queue_for_a_pair
from course_lib.pipeline.schedule import Action, Message, Schedule, Span, checked, unit_costs
from course_lib.pipeline.weight_gradients import DeferredWeightGradients, DeferredWork
from course_lib.train.accumulate import count_tokens


@dataclass
class InFlight:
    """State of a micro-batch on a stage, from its forward pass until its last gradient is made.

    Attributes:
        x: the stage's input; the stage before waits for `x.grad`.
        root: the graph's edge from which the backward pass begins.
        weights: the version of the weights that the forward pass used; empty with a synchronous schedule.
        later: the weight gradients that B has left for W.
    """

    x: Tensor
    root: GradientEdge  # and not the output, so that the memory of its values is free again
    weights: dict[str, Tensor]
    later: DeferredWork = field(default_factory=list)


class Pipeline:
    """This rank's part of a pipeline. All ranks must construct one, with the same schedule.

    Args:
        schedule: rank r of the group carries out `schedule.actions[r]`.
        stages: stage number → module, for the stages of this rank. The first takes a micro-batch's inputs, the others
            the output of the stage before. The last takes the targets, too, and returns the mean loss over them.
            `recv_buffer(inputs)` allocates the tensor for a message from a neighbour.
        optimizer: over this rank's parameters; for an asynchronous schedule only, which steps after each backward pass.
        group: the ranks of the pipeline; None for all.
        group_back: the same ranks, for messages to lower ranks, where `one_queue_for_a_pair`; None makes a new one.
        check: False carries out a schedule that `problems` rejects.
        blocking_sends: as for `PipelineMessages`; to see a deadlock.

    Attributes:
        spans: begin and end of each action of the last step, in seconds on a clock that the ranks of one machine share
            (`gantt_of` makes the chart of all ranks). A rank waits for messages between spans. On a GPU, where kernels
            are only queued, spans mean little.

    Raises:
        ValueError: the schedule is not valid or does not fit the ranks or stages; no optimizer, or no `group_back`.
    """

    def __init__(
        self, schedule: Schedule, stages: Mapping[int, nn.Module], *, optimizer: torch.optim.Optimizer | None = None,
        group: Group = None, group_back: Group = None, check: bool = True, blocking_sends: bool = False,
    ) -> None:  # fmt: skip
        if group_back is None and one_queue_for_a_pair(group):
            if group is not None:
                raise ValueError("on NCCL the messages to lower ranks need a group of their own: give group_back")
            group_back = dist.new_group()  # type: ignore[assignment]
        self.schedule = checked(schedule) if check else schedule
        self.stages, self.optimizer, self.group, self.group_back = stages, optimizer, group, group_back or group
        self.rank = dist.get_rank(group)
        self.spans: list[Span] = []
        self._blocking_sends = blocking_sends
        self._in_flight: dict[tuple[int, int], InFlight] = {}
        self._has_met = False
        self._check_fit()

    def forward_backward(self, micro_batches: Sequence[Batch], tokens: float | None = None) -> Tensor | None:
        """Carry out this rank's actions, which add the gradients of the mean loss over all tokens to `.grad`.

        Args:
            micro_batches: inputs and targets, the same on every rank.
            tokens: divisor of the sum of all tokens' losses; None for their number, which makes the quotient the mean.

        Returns:
            The mean loss over all tokens, detached, on the rank of the last stage; None on the others.

        Raises:
            ValueError: another number of micro-batches, one without a target, or a tied weight has a gradient already.
        """
        mail = self._begin(micro_batches, tokens)
        for action in self.schedule.actions[self.rank]:
            received = mail.receive(self.schedule.consumes(action))  # the only place where a rank waits
            start = time.perf_counter()
            made = self._do(action, received)
            self.spans.append(Span(action, start, time.perf_counter()))
            mail.send(self.schedule.produces(action), made)
        mail.finish()
        self._add_tied_gradients()
        return self._loss

    def _do(self, action: Action, received: Tensor | None) -> Tensor | None:
        """Carry out one action, and return its result for a neighbouring stage."""
        if action.kind == "F":
            return self._forward(action, received)
        if action.kind == "U":
            return self._update(action.stage)
        flight = self._in_flight[action.stage, action.micro_batch]
        if action.kind in ("B", "BW"):
            torch.autograd.backward(flight.root, received)
            self._gather_gradients(action.stage, flight)
        if action.kind == "W":
            for add_weight_gradient in flight.later:
                add_weight_gradient()
        if action.kind in ("W", "BW"):
            del self._in_flight[action.stage, action.micro_batch]
        return None if action.kind == "W" else flight.x.grad

    def _forward(self, action: Action, received: Tensor | None) -> Tensor:
        stage, (inputs, targets) = self.stages[action.stage], self._micro_batches[action.micro_batch]
        x = inputs if received is None else received.requires_grad_()  # a leaf: autograd stops at the stage's input
        is_last = action.stage == self.schedule.stages - 1
        weights, later = self._version_of(stage), []
        with DeferredWeightGradients(later) if action in self._split else nullcontext():
            arguments = (x, targets) if is_last else (x,)
            y = functional_call(stage, weights, arguments) if weights else stage(*arguments)
        if is_last:
            y = self._count_loss(y, self._shares[action.micro_batch])
        self._in_flight[action.stage, action.micro_batch] = InFlight(x, get_gradient_edge(y), weights, later)
        return y.detach()  # the message must not keep this stage's graph

    def _version_of(self, stage: nn.Module) -> dict[str, Tensor]:
        """The present version of the weights, on the parameters' own memory; empty with a synchronous schedule."""
        named = stage.named_parameters() if self.schedule.is_asynchronous else ()
        return {name: weight.data.requires_grad_(weight.requires_grad) for name, weight in named}  # .data: own versions

    def _count_loss(self, loss: Tensor, share: float) -> Tensor:
        """Add a micro-batch's share to the step's loss, and return the tensor from which its backward pass begins."""
        self._loss = loss.detach() * share + (0 if self._loss is None else self._loss)
        return loss if self.schedule.is_asynchronous else loss * share  # PipeDream steps with each one's own mean

    def _gather_gradients(self, stage: int, flight: InFlight) -> None:
        """Move the gradients of an older version of the weights to the parameters."""
        for name, parameter in self.stages[stage].named_parameters() if flight.weights else ():
            parameter.grad = flight.weights[name].grad  # where the optimizer looks

    def _update(self, stage: int) -> None:
        """Step the optimizer. Micro-batches in flight keep the old weights."""
        assert self.optimizer is not None
        if any(key[0] == stage for key in self._in_flight):
            for parameter in self.stages[stage].parameters():
                parameter.data = parameter.data.clone()  # the step writes here, and the old version stays as it is
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _add_tied_gradients(self) -> None:
        """Give both copies of a tied weight, on the first and on the last stage, the sum of their gradients."""
        gradients = [weight.grad for weight in self._tied_weights() if weight.grad is not None]
        if len(gradients) == 2:  # both ends are on this rank
            gradients[0] += gradients[1]
            gradients[1].copy_(gradients[0])
        elif gradients:
            gradient, other_gradient = gradients[0], torch.empty_like(gradients[0])
            first, last = self.schedule.owner[0], self.schedule.owner[-1]
            peer, groups = last if self.rank == first else first, (self.group, self.group_back)
            work = dist.isend(gradient, group=groups[peer < self.rank], group_dst=peer)
            dist.recv(other_gradient, group=groups[self.rank < peer], group_src=peer)
            assert work is not None
            work.wait()
            gradient += other_gradient  # after the wait: the send reads `gradient` until then

    def _tied_weights(self) -> list[Tensor]:
        weights = (getattr(stage, "tied_weight", None) for _, stage in sorted(self.stages.items()))
        return [weight for weight in weights if weight is not None]

    def _begin(self, micro_batches: Sequence[Batch], tokens: float | None) -> PipelineMessages:
        if len(micro_batches) != self.schedule.micro_batches:
            raise ValueError(
                f"{len(micro_batches)} micro-batches given, but the schedule has {self.schedule.micro_batches}"
            )
        if any(weight.grad is not None and weight.grad.any() for weight in self._tied_weights()):
            raise ValueError(
                "a tied weight already has a gradient, which would count twice, once for each end: call "
                "optimizer.zero_grad() before forward_backward"
            )
        counts = [count_tokens(targets) for _, targets in micro_batches]  # micro-batches may differ: a share is not 1/M
        if not all(counts):
            raise ValueError(f"micro-batch {counts.index(0)} has no target, and a mean over nothing is nan")
        self._micro_batches, self._shares = micro_batches, [count / (tokens or sum(counts)) for count in counts]
        self._loss: Tensor | None = None
        self.spans = []
        self._in_flight.clear()  # a step that broke off may have left some
        self._split = {a._replace(kind="F") for a in self.schedule.actions[self.rank] if a.kind == "W"}  # F of B and W
        groups = self.group, self.group_back
        if not self._has_met:
            device = next(weight.device for stage in self.stages.values() for weight in stage.parameters())
            if backend_of(device, self.group) == "nccl":
                meet(self.schedule, self.rank, torch.zeros(1, device=device), groups, bool(self._tied_weights()))
            self._has_met = True
        return PipelineMessages(self.schedule, self.rank, self._empty, groups, self._blocking_sends)

    def _empty(self, message: Message) -> Tensor:
        stage = self.stages[message.stage]
        return stage.recv_buffer(self._micro_batches[message.micro_batch][0])  # type: ignore[operator]

    def _check_fit(self) -> None:
        schedule, world_size = self.schedule, dist.get_world_size(self.group)
        if schedule.mirrored:
            raise ValueError(f"{schedule.name!r} is data only: this executor holds one copy of each stage, not two")
        if schedule.ranks != world_size:
            raise ValueError(f"the schedule is for {schedule.ranks} ranks, but the pipeline has {world_size}")
        if sorted(self.stages) != schedule.stages_of(self.rank):
            raise ValueError(
                f"rank {self.rank} was given the stages {sorted(self.stages)}, but in the schedule it holds "
                f"{schedule.stages_of(self.rank)}"
            )
        if schedule.is_asynchronous != (self.optimizer is not None):
            raise ValueError(
                "an asynchronous schedule steps by itself and needs an optimizer; with a synchronous one, step "
                "after forward_backward and give none"
            )
        if schedule.is_asynchronous and self._tied_weights():
            raise ValueError("an asynchronous schedule cannot keep two copies of a weight equal: build with tied=False")

    @property
    def stash_bytes(self) -> int:
        """Bytes of the old weight versions that micro-batches in flight keep."""
        newest = {p.untyped_storage().data_ptr() for stage in self.stages.values() for p in stage.parameters()}
        held = {  # by address, since several micro-batches may keep the same version
            weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes()
            for flight in self._in_flight.values()
            for weight in flight.weights.values()
        }
        return sum(nbytes for pointer, nbytes in held.items() if pointer not in newest)


class PacedPipeline(Pipeline):
    """A `Pipeline` in which each action takes `unit_costs(schedule, unit_s)`, or longer if its computation does."""

    unit_s = 0.02  # seconds of an F, a B or a W, for all the stages of a rank together; a BW takes twice as long

    def _do(self, action: Action, received: Tensor | None) -> Tensor | None:
        end = time.perf_counter() + unit_costs(self.schedule, self.unit_s).of(action.kind, action.stage)
        made = super()._do(action, received)
        time.sleep(max(0.0, end - time.perf_counter()))  # asleep, so that ranks which share a core overlap
        return made
