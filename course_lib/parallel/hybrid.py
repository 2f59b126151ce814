"""One training step over three axes: a pipeline whose stages are cut over tensor ranks, in several replicas.

    grid = HybridParallel(config, Mesh({"pipeline": 2, "data": 2, "tensor": 2}), micro_batches=4, zero=1)  # 8 ranks
    optimizer = grid.optimizer(torch.optim.AdamW, lr=1e-3)
    loss = grid.train_step(optimizer, batch, max_norm=1.0)  # the whole batch on every rank, the same loss on every rank

    tensor ranks    share every layer, and talk in each
    pipeline ranks  pass the stream along, from stage to stage
    data ranks      hold the same parts of the same layers, see other sequences, and average their gradients at the end;
                    with ZeRO each keeps the optimizer's state of a part

After each step loss and weights are those of `train_step`. `parallel.train` runs this class under torchrun.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from course_lib.collectives.operators import own_part
from course_lib.model.gpt import GPTConfig
from course_lib.model.text import Batch
from course_lib.parallel.data import Bucket, plan_buckets
from course_lib.parallel.mesh import Mesh, process_groups
from course_lib.parallel.tensor_gpt import ParallelStage, shardings
from course_lib.parallel.zero import ZeroOptimizer, clip_parts_
from course_lib.parallel.zero3 import Zero3
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.messages import one_queue_for_a_pair
from course_lib.pipeline.schedule import ORDERS
from course_lib.pipeline.stages import GPTStage, partition_layers
from course_lib.train.accumulate import IGNORE, count_tokens

AXES = ("pipeline", "data", "tensor")
"""The slowest first: tensor ranks are neighbours, and talk most. Another order computes the same, over other links."""
AnyOptimizer = torch.optim.Optimizer | ZeroOptimizer


class HybridParallel(nn.Module):
    """This rank's part of the model, and its part of a step. All ranks must construct one, with the same arguments.

    `parameters()` are this rank's own.

    Args:
        config: the whole model's config.
        mesh: ranks along "pipeline", "data" and "tensor" (best in this order).
        micro_batches: micro-batches in a replica's part of the batch.
        schedule: name of the pipeline's schedule, in `ORDERS`.
        sequence_parallel: whether the tensor ranks cut the stream along the sequence.
        zero: stage of ZeRO along "data": 0 replicates; 1 cuts the optimizer's state, 2 gradients, 3 weights as well.
        seed, dtype, device: as for `GPT`.
        bucket_bytes: gradients travel along the data axis in buckets of about this size.

    Raises:
        ValueError: the mesh has other axes, or another number of ranks than there are; the schedule is unknown, or
            steps inside; there is dropout, whose masks would differ; the model does not divide; ZeRO cuts gradients
            that a pipeline is still adding to.
    """

    def __init__(
        self, config: GPTConfig, mesh: Mesh, *, micro_batches: int = 1, schedule: str = "1f1b",
        sequence_parallel: bool = False, zero: Literal[0, 1, 2, 3] = 0, seed: int = 0, dtype: torch.dtype | None = None,
        device: torch.device | str | None = None, bucket_bytes: int = 25 * 2**20,
    ) -> None:  # fmt: skip
        super().__init__()
        _check(config, mesh, schedule, zero)
        order = ORDERS[schedule](mesh.axes["pipeline"], micro_batches)
        if zero > 1 and (order.stages > 1 or any(action.kind == "W" for action in order.actions[0])):
            raise ValueError(
                f"zero={zero} over {mesh.axes['pipeline']} pipeline stages ({schedule}): gradients would be reduced "
                "after every micro-batch, before all of their terms are there; take zero=1"
            )
        self.mesh, self.groups, self.bucket_bytes = mesh, process_groups(mesh), bucket_bytes
        self.zero: Literal[0, 1, 2, 3] = zero
        layers = partition_layers([0.0, *[1.0] * config.layers, 0.0], order.stages)  # both ends count as free
        place = mesh.coordinates(dist.get_rank())["pipeline"]
        self.stages = nn.ModuleDict()
        for number in order.stages_of(place):
            stage = GPTStage(config, layers[number], seed, dtype).to(device)
            part = ParallelStage(stage, self.groups["tensor"], sequence_parallel) if mesh.axes["tensor"] > 1 else stage
            if zero == 3:
                part = Zero3(part, self.groups["data"], bucket_bytes, units=part.blocks.values())
            self.stages[str(number)] = part
        stages = {int(number): stage for number, stage in self.stages.items()}
        pipeline = self.groups["pipeline"]
        back = process_groups(mesh)["pipeline"] if one_queue_for_a_pair(pipeline) else None
        self.pipeline = Pipeline(order, stages, group=pipeline, group_back=back)
        parameters = list(self.parameters())
        plan = plan_buckets(parameters, bucket_bytes) if mesh.axes["data"] > 1 and not zero else []  # ZeRO has its own
        self._buckets = [Bucket([parameters[number] for number in numbers]) for numbers in plan]

    def optimizer(self, optimizer_cls: type[torch.optim.Optimizer], **arguments: Any) -> AnyOptimizer:
        """An optimizer of this rank's parameters, or, with ZeRO, of its part of them. All ranks must call.

        `optimizer_cls` updates each element by itself, so each rank's steps are the whole model's.
        """
        if self.zero in (0, 3):
            return optimizer_cls([p for stage in self.stages.values() for p in stage.parameters()], **arguments)
        group, bucket_bytes = self.groups["data"], self.bucket_bytes
        return ZeroOptimizer(self.parameters(), optimizer_cls, self.zero, group, bucket_bytes, **arguments)

    def train_step(self, optimizer: AnyOptimizer, batch: Batch, max_norm: float | None = None) -> Float[Tensor, ""]:
        """Forward, backward, step, as `train_step` on one device; the mean loss before the step, on every rank.

        The loss is over all tokens, and detached. All ranks must call.

        Args:
            optimizer: the one that `optimizer` has made.
            batch: inputs and targets of all replicas together, the same on every rank.
            max_norm: clip the gradient to this norm before the step; None does not clip.

        Raises:
            ValueError: the batch does not divide into equal micro-batches for every replica, or one has no target.
        """
        optimizer.zero_grad()
        for stage in self.stages.values():
            stage.zero_grad()  # in a Zero3 also what a step that broke off has left
        loss = self.forward_backward(batch)
        if max_norm is not None:
            self.clip_grad_norm_(optimizer, max_norm)
        optimizer.step()
        return loss

    def forward_backward(self, batch: Batch) -> Float[Tensor, ""]:
        """The loss of the whole batch; its gradients are then in `.grad` (with ZeRO: when the optimizer steps).

        Arguments and errors: `train_step`.
        """
        rows, replicas = len(batch[0]), self.mesh.axes["data"]
        pieces = replicas * self.pipeline.schedule.micro_batches
        if rows % pieces:
            raise ValueError(
                f"{rows} sequences do not split into {pieces} equal pieces: {replicas} replicas times "
                f"{self.pipeline.schedule.micro_batches} micro-batches; choose a batch that divides"
            )
        inputs, targets = (own_part(tensor, 0, self.groups["data"]) for tensor in batch)  # a replica's rows
        micro_batches = list(zip(inputs.split(rows // pieces), targets.split(rows // pieces)))
        own = self.pipeline.forward_backward(micro_batches, self._tokens_of_a_replica(batch[1]))
        self._average_replicas()
        return self._everyones_loss(own)

    def clip_grad_norm_(self, optimizer: AnyOptimizer, max_norm: float) -> Tensor:
        """Scale the whole model's gradient down to a norm of at most `max_norm`; return the norm before.

        All ranks must call, between `forward_backward` and `optimizer.step`. The square of each element counts once,
        on however many ranks it lies. Bytes sent by each rank: an all-reduce of 8.
        """
        pairs = [pair for stage in self.stages.values() for pair in self._where_to_count(stage)]
        if isinstance(optimizer, ZeroOptimizer):
            optimizer.reduce_gradients()
            counts = dict(pairs)
            found = [(piece.value.grad, counts[optimizer.parameters[piece.number]]) for piece in optimizer.pieces]
        else:
            found = [(parameter.grad, here) for parameter, here in pairs]
        own, copies = ([g for g, counted in found if g is not None and counted is here] for here in (True, False))
        return clip_parts_(own, max_norm, None, next(self.parameters()).device, copies)

    def _where_to_count(self, stage: nn.Module) -> Iterator[tuple[nn.Parameter, bool]]:
        """Each parameter of a stage, and whether its gradient counts on this rank: on one of those that have it."""
        inner: Any = stage.module if isinstance(stage, Zero3) else stage  # a `GPTStage`
        place, cut, tied = self.mesh.coordinates(dist.get_rank()), shardings(inner), inner.tied_weight
        is_first_replica = self.zero > 0 or place["data"] == 0  # with ZeRO each data rank has elements of its own
        for name, parameter in stage.named_parameters():
            is_first_end = parameter is not tied or inner.is_first  # of the tied table, whose gradient is at both ends
            yield parameter, is_first_replica and is_first_end and (name in cut or place["tensor"] == 0)

    def _tokens_of_a_replica(self, targets: Tensor) -> float:
        # a divisor for the losses: the same on all replicas, also ragged ones, so that the mean of the replicas is the
        # mean over all tokens
        pieces = self.mesh.axes["data"] * self.pipeline.schedule.micro_batches
        if not (targets.reshape(pieces, -1) != IGNORE).any(1).all():  # here, as each replica sees its own alone
            raise ValueError(f"one of the {pieces} micro-batches has no target: mix the rows, or take fewer")
        return count_tokens(targets) / self.mesh.axes["data"]

    def _average_replicas(self) -> None:
        for stage in self.stages.values():
            if isinstance(stage, Zero3):
                stage.synchronize()
        for bucket in self._buckets:
            bucket.fill(1 / self.mesh.axes["data"])  # divided before it travels: 16 bits cannot overflow on the way
            bucket.work = dist.all_reduce(bucket.flat, group=self.groups["data"], async_op=True)
        for bucket in self._buckets:
            bucket.finish()

    def _everyones_loss(self, own: Tensor | None) -> Tensor:
        some = next(self.parameters())
        loss = torch.zeros((), dtype=torch.promote_types(some.dtype, torch.float32), device=some.device)
        if own is not None:  # on the last stage
            loss += own / self.mesh.axes["data"]  # the mean over replicas
        for axis in ("pipeline", "data"):
            if self.mesh.axes[axis] > 1:  # alone, a sum would still go through a thread of gloo's
                dist.all_reduce(loss, group=self.groups[axis])
        return loss


def _check(config: GPTConfig, mesh: Mesh, schedule: str, zero: int) -> None:
    if set(mesh.axes) != set(AXES):
        raise ValueError(f"Mesh({dict(mesh.axes)}): a grid has the axes {', '.join(AXES)}")
    known = [name for name in ORDERS if name != "pipedream"]
    if schedule not in known:
        raise ValueError(f"schedule={schedule!r}: it must be one of {', '.join(known)}, which step once, at the end")
    if config.dropout:
        raise ValueError(f"dropout={config.dropout}: each stage would draw masks of its own; take dropout=0")
    if zero not in (0, 1, 2, 3):
        raise ValueError(f"zero={zero}: the stage of ZeRO is 0, 1, 2 or 3")
