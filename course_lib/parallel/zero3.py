"""ZeRO, stage 3: weights, too, are stored in parts, and are whole only while they are used.

    model = Zero3(GPT(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)     # this rank's shards
    model(inputs, targets).backward()                              # each rank: its own share of the batch
    model.synchronize()                                            # the mean gradient's shards stand in .grad
    model.clip_grad_norm_(1.0)
    optimizer.step()
    model.zero_grad()                                              # what a broken pass left, too

A model runs layer by layer, so its weights are needed layer by layer. A *unit* (a block) is gathered from all ranks
just before its forward pass and freed just after, gathered again for its backward pass, and freed for good when its
gradients are scattered: two all-gathers and one reduce-scatter, 3Ψ where data parallelism sends 2Ψ (Rajbhandari et al.
2020, §5.3 and §7.2.2). PyTorch's `fully_shard` is the same idea. Two units, their weights and gradients in time:

    forward      unshard 1, run, reshard     unshard 2, run, reshard
    backward     unshard 2, run, reshard     unshard 1, run, reshard     end of the pass
    meanwhile                                reduce gradients of 2       reduce gradients of 1

Between machines 3Ψ may be too much. With `replicas` every machine holds all shards, gathers inside, and only the mean
of the shards' gradients crosses, 2Ψ/N from each of its N ranks (hybrid sharding: Zhao et al. 2023, §3.2.2).

With Ψ trainable parameters in 16 bits, AdamW and N ranks, a rank holds

    between steps        12Ψ/N: fp32 shards and two moments; 16-bit weights are made from the shards when they are sent
    before the step      16Ψ/N: and an fp32 gradient of the shards

the sum of the paper, which keeps 2Ψ/N each of 16-bit weights and 16-bit gradients in place of 4Ψ/N of fp32 gradients,
whose sum over several passes does not round. Weights in fp32 are the same 16Ψ/N, in fp64 twice that.

On top of this come buffers, whose size depends on the units and not on N (and padding, less than N elements for each
bucket). With W the bytes of the largest unit in the module's dtype, R those of the root unit and P those of the largest
parameter, at most

    weights              R + W, with `prefetch` R + 2W: the root unit, the unit at work, and the next one on its way
    gradients            R + 3W + P, in the backward pass: a unit's, while those of the one before are being sent and
                         received, and one of a parameter that has not joined the others yet
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_lib.collectives.operators import Group
from course_lib.parallel.data import broadcast_module, buffers_of, check_same_everywhere, plan_buckets, watch_gradients
from course_lib.parallel.guards import ShardGradient
from course_lib.parallel.layerwise import LayerwiseModule, plan_units, units_of
from course_lib.parallel.zero import (
    SIXTEEN_BITS,
    FlatShard,
    LocalShard,
    ask_everyone,
    clip_parts_,
    gather_parts,
    start_all_gather,
)


class Zero3(LayerwiseModule["Unit"]):
    """A module whose weights, gradients and optimizer state are cut over the ranks of data parallelism.

    All ranks must construct one, and call it, `synchronize`, `clip_grad_norm_` and the methods `gathered_…`; each runs
    its own share of the batch, through the same units in the same order. Bytes sent by each rank and step: (N-1)/N
    times three times the weights' bytes (for frozen ones twice), and an all-reduce of 4 for each parameter, and 4.
    Several backward passes before one `synchronize` add up, and each sends its own.

    `parameters()` are this rank's shards: flat, one for each parameter of the module and of its name, in the same
    order; empty where the rank has no element of it. An optimizer that updates each element by itself (SGD, Adam; not
    LAMB, not Adafactor) takes them, and groups can be made of `named_parameters()`. They are fp32 where a trainable
    parameter has 16 bits. A parameter that several units share is in the root unit, and gathered throughout.
    `step` of a torch optimizer refuses the module's own parameters, and shards whose gradients wait for `synchronize`.

    Between passes, the module's own parameters hold NaN. How units must be called: `LayerwiseModule`.

    Args:
        module: takes the parameters' and buffers' values of the group's first rank. Freeze before wrapping.
        group: the ranks that share the module; None for all.
        replicas: for hybrid sharding, the ranks that hold the same shards, each in another group; None if there are no
            others.
        bucket_bytes: a unit's weights and gradients travel in buckets of about this size.
        prefetch: gather the next unit while one is at work, assuming that units run in the order of `module.modules()`.
        units: the modules that are gathered one at a time; None for the children of all ModuleLists. The rest is the
            root unit, which is there during the whole forward and the whole backward pass.

    Attributes:
        pieces: this rank's shards, in the order of the module's parameters.

    Raises:
        ValueError: nothing to train, the ranks' modules differ, one unit lies in another, or replicas without a group.
    """

    def __init__(
        self, module: nn.Module, group: Group = None, bucket_bytes: int = 25 * 2**20, prefetch: bool = True,
        units: Iterable[nn.Module] | None = None, replicas: dist.ProcessGroup | None = None,
    ) -> None:  # fmt: skip
        if replicas is not None and group is None:
            raise ValueError("replicas without a group: the group has all ranks, so nobody else holds its shards")
        for each in (group,) if replicas is None else (replicas, group):
            check_same_everywhere(module, each)
            broadcast_module(module, each)
        parameters = list(module.parameters())
        trainable = [n for n, parameter in enumerate(parameters) if parameter.requires_grad]
        if not trainable:
            raise ValueError("no parameter to train: all are frozen, or there is none")
        modules = [module, *(units_of(module) if units is None else units)]  # the root takes all other parameters
        plan = plan_units(modules, parameters)
        sharded = [Unit(place, numbers, parameters, group, bucket_bytes) for place, numbers in enumerate(plan)]
        super().__init__(modules, sharded, prefetch)
        self.group, self.replicas, self._trainable = group, replicas, trainable
        self._names = [name for name, _ in module.named_parameters()]
        self._bucket_of = {number: bucket for bucket in self.buckets for number in bucket.numbers}
        self.pieces = sorted((p for bucket in self.buckets for p in bucket.pieces), key=lambda piece: piece.number)
        self._shards = [piece.value for piece in self.pieces]
        self._used = torch.zeros(len(parameters), dtype=torch.int32)  # 1: has had a gradient since `synchronize`
        self._reducing: list[UnshardableFlatParameter] = []  # a unit's buckets, whose gradients are on their way
        self._is_dirty = False  # a backward pass has run since `synchronize`
        watch_gradients([parameters[n] for n in self._trainable], self._on_gradient)
        _watch_steps(self)

    @property
    def buckets(self) -> list[UnshardableFlatParameter]:
        """The parameters that travel together."""
        return [bucket for unit in self.units for bucket in unit.buckets]

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's shards, under the names that the module has for the whole parameters."""
        yield from ((f"{prefix}.{name}" if prefix else name, shard) for name, shard in zip(self._names, self._shards))

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", **kwargs: Any) -> Any:
        """This rank's shards and the persistent buffers, by name; `gathered_state_dict` has the whole weights."""
        state = {} if destination is None else destination
        state |= {prefix + name: shard.detach() for name, shard in self.named_parameters()}
        state |= {prefix + name: buffer for name, buffer in buffers_of(self.module).items()}
        return state

    def synchronize(self) -> None:
        """Give each shard its part of the mean gradient over the ranks and the sum over the backward passes since.

        All ranks must call. Unused parameters and overflows: as in `ZeroOptimizer.reduce_gradients`.
        """
        if not self._is_dirty:
            return
        means = [bucket.mean for bucket in self.buckets if bucket.mean is not None]
        self._average_replicas(means)
        groups = (self.group,) if self.replicas is None else (self.group, self.replicas)
        used, overflows = ask_everyone(self._used, means, groups, self._shards[0].device)  # one small message for both
        for bucket in self.buckets:
            for piece in bucket.pieces:
                if used[piece.number] and bucket.mean is not None:
                    gradient = bucket.mean[piece.place].as_subclass(ShardGradient)
                    piece.value.grad = gradient if piece.value.grad is None else piece.value.grad.add_(gradient)
            bucket.mean = None
        for shard in self._shards if overflows else ():
            if shard.grad is not None:
                shard.grad.fill_(torch.inf)  # so that every rank's scaler skips this step
        self._forget()

    def _average_replicas(self, means: list[Tensor]) -> None:
        for mean in means if self.replicas is not None else ():
            dist.all_reduce(mean.div_(dist.get_world_size(self.replicas)), group=self.replicas)  # a mean of means

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the mean gradient down to a norm of at most `max_norm`; return the norm before. All ranks must call."""
        self.synchronize()
        gradients = [shard.grad for shard in self._shards if shard.grad is not None]
        return clip_parts_(gradients, max_norm, self.group, self._shards[0].device)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, also those that wait for `synchronize` or that a broken backward pass has left."""
        super().zero_grad(set_to_none)
        self._finish_reduction()
        for unit in self.units:
            unit.is_open = False
        for bucket in self.buckets:
            bucket.gradient = bucket.mean = None
        self._forget()

    def gathered_state_dict(self) -> dict[str, Tensor]:
        """The module's own state, whole, on every rank, in new memory. All ranks must call."""
        state = self.module.state_dict(keep_vars=True)
        copies: dict[int, Tensor] = {}
        self._free_all_if_root(self.units[0])  # nothing old, where the last pass has ended in an error
        for unit in self.units:
            unit.unshard()
            here = {id(parameter) for bucket in unit.buckets for parameter in bucket.parameters}
            copies |= {id(p): p.detach().clone() for p in state.values() if id(p) in here}
            unit.reshard()
        return {name: copies[id(p)] if id(p) in copies else p.detach().clone() for name, p in state.items()}

    def gathered_masters(self) -> dict[str, Tensor]:
        """The trainable weights as the optimizer has them, fp32 where the module's have 16 bits, whole, on every rank.

        Names are the module's, memory is new. All ranks must call. Bytes sent by each: (N-1)/N times the masters'.
        """
        return self._gathered(Tensor.detach)

    def gathered_gradients(self) -> dict[str, Tensor]:
        """The mean gradients, whole, on every rank; not of weights that no rank has used. As `gathered_masters`.

        Where gradients wait for `synchronize`, this is done first.
        """
        self.synchronize()
        return self._gathered(lambda shard: shard.grad)

    def _gathered(self, part: Callable[[Tensor], Tensor | None]) -> dict[str, Tensor]:
        whole = gather_parts([b for b in self.buckets if b.trains], lambda piece: part(piece.value))
        there = [n for n in self._trainable if part(self._shards[n]) is not None]
        return {self._names[n]: whole[n] for n in there}

    @torch.no_grad()
    def load_gathered_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take this rank's part of whole weights, such as those of the plain module; all or nothing.

        Raises:
            ValueError: a weight or persistent buffer is missing, or has another shape.
        """
        buffers = buffers_of(self.module)
        needed = {name: tuple(tensor.shape) for name, tensor in [*self.module.named_parameters(), *buffers.items()]}
        found = {name: tuple(state[name].shape) if name in state else "nothing" for name in needed}
        wrong = [
            f"{name}: found {found[name]}, needed {shape}" for name, shape in needed.items() if found[name] != shape
        ]
        if wrong:
            raise ValueError(f"a state of another module, {len(wrong)} tensors differ: {'; '.join(wrong[:5])}")
        for name, piece in zip(self._names, self.pieces):
            piece.value.copy_(state[name].reshape(-1)[piece.inside])
        for name, buffer in buffers.items():
            buffer.copy_(state[name])

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse a step that would change nothing; called before each step of any optimizer in this process."""
        given = {id(p) for each in optimizer.param_groups for p in each["params"]}
        if any(id(p) in given for bucket in self.buckets for p in bucket.parameters):
            raise ValueError(
                "this optimizer has the parameters of the module inside, which are empty between passes and never get "
                "a gradient: make the optimizer after the wrapper, of the wrapper's parameters()"
            )
        if self._is_dirty and any(id(shard) in given for shard in self._shards):
            raise ValueError(
                "step() after a backward pass whose gradients were not averaged over the ranks, so the shards do not "
                "have them: call the wrapper's synchronize() first, or its zero_grad() to drop them"
            )
        for bucket in self.buckets if any(id(shard) in given for shard in self._shards) else ():
            increment_version(bucket.parameters)  # autograd then refuses a backward pass through older weights

    def _before_backward(self, unit: Unit, call: int, _gradient: Tensor) -> None:
        self._is_dirty = True
        super()._before_backward(unit, call, _gradient)

    def _on_gradient(self, trainable: int) -> None:
        number = self._trainable[trainable]
        self._bucket_of[number].take_gradient(number)
        self._used[number] = 1

    def _closed(self, unit: Unit) -> None:
        """Send a unit's gradients."""
        self._finish_reduction()  # one unit's gradients are on their way at any time
        for bucket in unit.buckets:
            bucket.start_reduce()
        self._reducing = unit.buckets

    def _end_of_pass(self) -> None:
        super()._end_of_pass()
        self._finish_reduction()

    def _finish_reduction(self) -> None:
        for bucket in self._reducing:
            bucket.finish_reduce()
        self._reducing = []

    def _forget(self) -> None:
        self._used.zero_()
        self._is_dirty = self._is_backward = False


class Unit:
    """Parameters that are gathered, used and freed together, in buckets: a `LoadableUnit`."""

    def __init__(
        self, place: int, numbers: list[int], parameters: Sequence[nn.Parameter], group: Group, bucket_bytes: int
    ) -> None:
        self.place, self.is_open = place, False
        self.buckets: list[UnshardableFlatParameter] = []
        for trainable in (True, False):  # apart: frozen parameters have no gradients to reduce
            chosen = [n for n in numbers if parameters[n].requires_grad is trainable]
            plan = plan_buckets([parameters[n] for n in chosen], bucket_bytes)
            self.buckets += [UnshardableFlatParameter([chosen[i] for i in each], parameters, group) for each in plan]

    def start_unshard(self) -> None:
        """Begin to gather all weights."""
        for bucket in self.buckets:
            bucket.start_unshard()

    def unshard(self) -> None:
        """Wait until all weights are there."""
        self.start_unshard()
        for bucket in self.buckets:
            bucket.finish_unshard()

    def reshard(self) -> None:
        """Give the weights' memory back."""
        for bucket in self.buckets:
            bucket.reshard()


class UnshardableFlatParameter(FlatShard):
    """Parameters whose weights are there from `unshard` to `reshard`, and whose gradients until `start_reduce`.

    After `reshard`, parameters have their shape and NaN for values, so a weight that was not gathered shows.
    `pieces` are this rank's shards, one of each parameter, maybe without an element.
    """

    def __init__(self, numbers: list[int], parameters: Sequence[nn.Parameter], group: Group) -> None:
        super().__init__(numbers, parameters, group)
        first = self.parameters[0].detach()
        self.trains = self.parameters[0].requires_grad
        if self.dtype in SIXTEEN_BITS and self.trains:
            self.dtype = torch.float32  # of the masters
        self._own = first.new_zeros(self.part, dtype=self.dtype)
        for number, parameter, (inside, place) in zip(numbers, self.parameters, self.slices):
            self._own[place] = parameter.detach().reshape(-1)[inside]
            self.pieces.append(LocalShard(number, inside, place, nn.Parameter(self._own[place], self.trains)))
        self._flat = self.new_vector()  # the whole weights; its storage has 0 bytes while they are away
        self._whole = self.places(self._flat)
        self._nothing = [first.new_full((), torch.nan).expand(p.shape) for p in self.parameters]  # one NaN each
        self._gathering: dist.Work | None = None
        self.gradient: Tensor | None = None  # of the whole bucket, as the backward pass fills it
        self._empty()

    @property
    def is_unsharded(self) -> bool:
        """Whether the weights are here, or on their way."""
        return self._flat.untyped_storage().nbytes() > 0

    def start_unshard(self) -> None:
        """Ask the other ranks for their parts. All ranks must call. Each sends (N-1)/N of the bucket's bytes."""
        if not self.is_unsharded:
            self._flat.untyped_storage().resize_(self._flat.nbytes)  # the same tensor gets memory again
            self._sent = self._own.to(self._flat.dtype)  # fp32 masters travel as 16-bit weights
            self._gathering = start_all_gather(self._flat, self._sent, self.group)

    def finish_unshard(self) -> None:
        """Wait for the weights, and give them to the parameters."""
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None
            del self._sent
            for parameter, whole in zip(self.parameters, self._whole):
                parameter.data = whole  # a view of the flat vector

    def reshard(self) -> None:
        """Give the weights' memory back. Views that autograd has saved remain, and see the weights that come next."""
        if self.is_unsharded:
            self.finish_unshard()
            self._empty()

    def take_gradient(self, number: int) -> None:
        """Add a parameter's gradient to the bucket's."""
        if self.gradient is None:
            self.gradient = self.new_vector().zero_()  # and 0 it stays where this rank uses nothing; others may
        index = self.numbers.index(number)
        parameter, begin = self.parameters[index], sum(self.sizes[:index])
        assert parameter.grad is not None
        place = self.gradient[begin : begin + parameter.numel()].view_as(parameter)
        place += parameter.grad  # add: several recomputed units may have the parameter
        parameter.grad = None  # its values are in the bucket now

    def start_reduce(self) -> None:
        """Send the other ranks their parts of the gradient. All ranks must call. Bytes as in `start_unshard`."""
        if self.trains:  # no rank may stay away from the reduction
            self.send_gradient(self.new_vector().zero_() if self.gradient is None else self.gradient)
            self.gradient = None

    def _empty(self) -> None:
        for parameter, nothing in zip(self.parameters, self._nothing):
            parameter.data = nothing
        self._flat.untyped_storage().resize_(0)  # the tensor stays, and every view of it; its bytes go


def _watch_steps(model: Zero3) -> None:
    """Let a model look at each optimizer before the optimizer steps, as long as the model lives."""
    weak = weakref.WeakMethod(model._before_step)  # a hook must not keep the model alive

    def before(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if (method := weak()) is not None:
            method(optimizer)

    weakref.finalize(model, register_optimizer_step_pre_hook(before).remove).atexit = False
