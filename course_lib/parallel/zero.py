"""ZeRO, stages 1 and 2: data parallelism in which each rank keeps the optimizer's state of its own part of the weights.

    optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=2, lr=1e-3)
    loss.backward()                    # each rank: its own share of the batch
    optimizer.clip_grad_norm_(1.0)     # the norm of the mean gradient, over all parts
    optimizer.step()                   # every rank: the weights of a step on the joined batch
    optimizer.zero_grad()

An all-reduce is a reduce-scatter and an all-gather. Between the two each rank has the mean gradient of one part, and an
element-wise optimizer needs no more to update this part: so step there, and gather weights instead of gradients. The
bytes are those of data parallelism, and the state is stored once instead of N times (Rajbhandari et al. 2020, §5). A
bucket of three parameters on two ranks; a 0 pads the last part, and is in no `LocalShard`:

    gradients of rank 0    a a a a b | b b b c 0
    gradients of rank 1    a a a a b | b b b c 0
      reduce-scatter           v           v
    mean gradients          rank 0      rank 1        each rank's optimizer steps on its part, in this example
    new weights             rank 0      rank 1        two shards each: a and the front of b, the rest of b and c
      all-gather               v           v
    weights of both        a a a a b | b b b c 0

With Ψ parameters in 16 bits, AdamW and N ranks, a rank holds between steps

    stage 1      2Ψ weights, 2Ψ gradients, 12Ψ/N master weights and moments
    stage 2      2Ψ weights, and 14Ψ/N: a gradient is dropped as soon as its bucket has been reduced

and while gradients are reduced, a bucket as it is sent, as it is received, and the next one; in `step`, when no
activation is alive, the part's gradient once more in fp32, 4Ψ/N. Weights in fp32 or fp64 are their own masters.

In fp16 the loss is scaled. An overflow lies in one rank's part, and all ranks must skip the step:

    scaler.scale(loss).backward()
    optimizer.reduce_gradients()       # here ranks agree on an overflow
    scaler.unscale_(optimizer)         # only before a clip
    scaler.step(optimizer)
    scaler.update()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import increment_version

from course_kit.communications import backend_of
from course_lib.collectives.operators import Group, all_gather, all_gather_single, all_reduce, reduce_scatter_single
from course_lib.parallel.data import broadcast_tensors, plan_buckets, watch_gradients
from course_lib.parallel.guards import GuardedPieces, ShardGradient

SIXTEEN_BITS = (torch.float16, torch.bfloat16)


class ZeroOptimizer(torch.optim.Optimizer):
    """An optimizer whose state and, from stage 2 on, whose gradients are cut over the ranks of data parallelism.

    Each rank runs its own share of the batch; `step` reduces the gradients to their mean, so no wrapper is needed.
    (Gradients that are the mean already stay the mean.) All ranks must construct one, and call `step` and
    `clip_grad_norm_`; with stage 2 they must run equally many backward passes. Bytes sent by each rank and step:
    (N-1)/N times the trainable weights' for the gradients, as much for the weights, and an all-reduce of 4 for each
    parameter, and 4. Stage 2 sends the gradients in every backward pass: with m passes before a step, m times.

    Args:
        params: parameters, or parameter groups, as for any optimizer; they take the values of the group's first rank.
            Frozen ones are never changed; the others move to new memory, those of a bucket next to each other.
        optimizer_cls: a torch optimizer that updates each element by itself (SGD, Adam; not LAMB, not Adafactor).
        stage: 1 cuts the state, 2 the gradients as well.
        group: the ranks that hold a replica; None for all.
        bucket_bytes: parameters are reduced and gathered in buckets of about this size.

    Attributes:
        optimizer: the `optimizer_cls` of this rank's shards. A learning-rate scheduler takes either optimizer.
        buckets: the parameters that travel together.

    Raises:
        ValueError: no such stage, or nothing to train.
    """

    def __init__(
        self, params: Iterable[Any], optimizer_cls: type[torch.optim.Optimizer], stage: Literal[1, 2] = 1,
        group: Group = None, bucket_bytes: int = 25 * 2**20, **optimizer_args: Any,
    ) -> None:  # fmt: skip
        if stage not in (1, 2):
            raise ValueError(f"stage={stage}: it is 1 (the state is cut) or 2 (gradients as well)")
        # no super().__init__: groups and state are those of `optimizer`, and stay so when a state is loaded
        param_groups = groups_of(params)
        everything = [p for each in param_groups for p in each["params"]]
        self.stage, self.group = stage, group
        self.parameters = [p for p in everything if p.requires_grad]
        if not self.parameters:
            raise ValueError("no parameter to train: all are frozen, or none was given")
        broadcast_tensors(everything, group)
        plan = plan_buckets(self.parameters, bucket_bytes)
        self.buckets = [ReplicatedFlatShard(numbers, self.parameters, group) for numbers in plan]
        values = {id(self.parameters[piece.number]): piece.value for piece in self.pieces}
        own = [each | {"params": [values[id(p)] for p in each["params"] if id(p) in values]} for each in param_groups]
        self.optimizer = optimizer_cls(own, **optimizer_args)
        self.defaults = self.optimizer.defaults
        for each in self.optimizer.param_groups:
            each["params"] = GuardedPieces(each["params"], self)
        self._used = torch.zeros(len(self.parameters), dtype=torch.int32)  # 1: has had a gradient since the last step
        self._ready = set[int]()  # parameters whose gradient this backward pass has finished
        self._next = 0  # the bucket that this backward pass reduces next
        self._reduced = False  # the pieces have their gradients
        watch_gradients(self.parameters, self._on_gradient)

    def _on_gradient(self, number: int) -> None:
        """Stage 2: reduce a bucket as soon as the backward pass has filled it; called in the middle of the pass."""
        if self._reduced:
            raise ValueError("the gradients are reduced already: all backward passes come before, or step or zero_grad")
        if self.stage == 1:
            return
        if number in self._ready:
            raise ValueError(
                "a weight has a second gradient in one backward pass, after its bucket was sent: recomputed segments "
                "share it (take stage=1, or Zero3), or an earlier pass ended in an error (zero_grad() forgets it)"
            )
        if not self._ready:  # the first gradient of this pass
            Variable._execution_engine.queue_callback(self._reduce_rest)  # at its end
        self._ready.add(number)
        self._used[number] = 1
        while self._next < len(self.buckets) and self._ready.issuperset(self.buckets[self._next].numbers):
            self._reduce_next()

    def _reduce_rest(self) -> None:
        while self._next < len(self.buckets):  # one with a parameter that this rank did not use never got full
            self._reduce_next()
        self.buckets[-1].finish_reduce()
        self._next = 0
        self._ready.clear()

    def _reduce_next(self) -> None:
        bucket = self.buckets[self._next]  # always in the plan's order: collectives must match across ranks
        bucket.start_reduce()
        if self.stage == 2:
            for parameter in bucket.parameters:
                parameter.grad = None  # its numbers are in the message: this is the memory that stage 2 saves
        if self._next:
            self.buckets[self._next - 1].finish_reduce()  # after this one's start, so that one is always on its way
        self._next += 1

    def reduce_gradients(self) -> None:
        """Give each of this rank's shards its part of the mean gradient. All ranks must call; `step` calls this, too.

        A parameter that no rank has used keeps no gradient, so that momentum and decay do not move it. An overflow in
        one rank's part is inf on all ranks, so that their loss scalers agree.
        """
        if self._reduced:
            return
        if self.stage == 1:  # after all backward passes; stage 2 has reduced in each of them
            self._used |= torch.tensor([p.grad is not None for p in self.parameters], dtype=torch.int32)
            self._reduce_rest()
        elif any(p.grad is not None for p in self.parameters):
            raise ValueError("a gradient was assigned, and stage 2 takes those of backward() only; take stage=1")
        means = [bucket.mean for bucket in self.buckets if bucket.mean is not None]
        users, overflows = ask_everyone(self._used, means, (self.group,), self.parameters[0].device)
        for bucket in self.buckets:
            for piece in bucket.pieces:
                if users[piece.number] and bucket.mean is not None:
                    gradient = bucket.mean[piece.place].to(piece.value.dtype)
                    piece.value.grad = (gradient.fill_(torch.inf) if overflows else gradient).as_subclass(ShardGradient)
            bucket.mean = None
        self._used[:] = torch.tensor(users)
        self._reduced = True

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the mean gradient down to a norm of at most `max_norm`; return the norm before. All ranks must call."""
        self.reduce_gradients()
        gradients = [piece.value.grad for piece in self.pieces if piece.value.grad is not None]
        return clip_parts_(gradients, max_norm, self.group, self.parameters[0].device)

    def step(self) -> None:  # type: ignore[override]
        """Reduce the gradients, update this rank's shards, gather the other ranks' weights. All ranks must call."""
        self.reduce_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for gathering in [bucket.start_all_gather_weights() for bucket in self.buckets]:  # all start before any wait
            gathering.wait()
        self._forget()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients: those of the parameters, and those that were reduced. They are None afterwards."""
        for parameter in self.parameters:
            parameter.grad = None
        for bucket in self.buckets:
            bucket.finish_reduce()  # a pass that ended in an error may have left it on its way
            bucket.mean = None
        self._next = 0
        self._ready.clear()
        self.optimizer.zero_grad(set_to_none=True)
        self._forget()

    def _forget(self) -> None:
        self._reduced = False
        self._used.zero_()

    @property
    def pieces(self) -> list[LocalShard]:
        """The shards that this rank updates."""
        return [piece for bucket in self.buckets for piece in bucket.pieces]

    @property
    def waits(self) -> bool:
        """Whether gradients are there that have not been reduced yet."""
        here = any(p.grad is not None for p in self.parameters) or any(b.mean is not None for b in self.buckets)
        return here and not self._reduced

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of `optimizer`; reading their shards raises a ValueError while gradients wait."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of this rank's shards."""
        return self.optimizer.state

    def gathered_masters(self, model: nn.Module) -> dict[str, Tensor]:
        """The trained weights as the optimizer has them, fp32 or wider, whole on every rank, by the model's names.

        All ranks must call. Bytes sent by each: (N-1)/N times those of the result, and padding. ValueError for a model
        that does not have all the parameters.
        """
        return self._named(model, gather_parts(self.buckets, lambda piece: piece.value))

    def gathered_gradients(self, model: nn.Module) -> dict[str, Tensor]:
        """The mean gradients of used parameters, reduced if need be, before `step`; else as `gathered_masters`."""
        self.reduce_gradients()
        found = gather_parts(self.buckets, lambda piece: piece.value.grad)
        return self._named(model, {number: found[number] for number in found if self._used[number]})

    def _named(self, model: nn.Module, tensors: dict[int, Tensor]) -> dict[str, Tensor]:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        if strange := [tuple(p.shape) for p in self.parameters if id(p) not in names]:
            raise ValueError(f"the model does not have parameters of shapes {strange}; give the one that is trained")
        return {names[id(self.parameters[number])]: tensors[number] for number in sorted(tensors)}

    def _refuse(self, *_args: Any, **_settings: Any) -> Any:
        raise ValueError(
            "state is cut over ranks: Checkpoints(folder, model, optimizer) saves it; groups cannot be added"
        )

    state_dict = load_state_dict = add_param_group = _refuse  # type: ignore[assignment]


def groups_of(params: Iterable[Any]) -> list[dict[str, Any]]:
    """Parameters, or parameter groups, as groups whose parameters are lists."""
    given = list(params)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    return [each | {"params": list(each["params"])} for each in groups]  # an iterator can be read once only


class LocalShard(NamedTuple):
    """The elements of one parameter that lie in a rank's part of a bucket."""

    number: int  # of the parameter
    inside: slice  # its elements, counted as if it were flat
    place: slice  # where they lie in the rank's part of the bucket
    value: nn.Parameter  # the tensor that the optimizer updates: an fp32 master, or a view of a wider parameter


class FlatShard:
    """Some parameters end to end, padded with zeros and cut into as many equal parts as there are ranks."""

    def __init__(self, numbers: list[int], parameters: Sequence[nn.Parameter], group: Group) -> None:
        self.numbers, self.group = numbers, group
        self.parameters = [parameters[number] for number in numbers]
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.part = part_length(self.sizes, self.ranks)  # elements of each rank's part
        self.slices = shard_slices(self.sizes, self.ranks, self.rank)  # of each parameter in this rank's part
        self.dtype = self.parameters[0].dtype  # of this rank's part of the gradient
        self.pieces: list[LocalShard] = []  # the shards that this rank's optimizer updates
        self.mean: Tensor | None = None  # this part: the mean over the ranks, summed over the passes
        self._reducing: Callable[[], Tensor] | None = None

    def places(self, flat: Tensor) -> list[Tensor]:
        """Views of a vector for the whole bucket: each parameter's place, in its shape."""
        places = flat[: sum(self.sizes)].split(self.sizes)
        return [place.view(parameter.shape) for place, parameter in zip(places, self.parameters)]

    def new_vector(self) -> Tensor:
        """Memory for the whole bucket; only the padding has a value, 0."""
        flat = self.parameters[0].detach().new_empty(self.part * self.ranks)
        flat[sum(self.sizes) :].zero_()
        return flat

    def send_gradient(self, flat: Tensor) -> None:
        """Begin to reduce. All ranks must call. Bytes sent by each: (N-1)/N times the bucket's."""
        wide = torch.float32 if flat.dtype in SIXTEEN_BITS else flat.dtype  # on gloo a sum rounds once, at its end
        self._reducing = start_reduce_scatter(flat, self.group, wide)

    @torch.no_grad()
    def finish_reduce(self) -> None:
        """Wait for this rank's part, and add it to the mean of earlier passes."""
        if self._reducing is not None:
            part = self._reducing().div_(self.ranks).to(self.dtype)
            self.mean = part if self.mean is None else self.mean.add_(part)
            self._reducing = None


class ReplicatedFlatShard(FlatShard):
    """Parameters that every rank has whole, end to end in memory; each rank updates its part (`pieces`)."""

    def __init__(self, numbers: list[int], parameters: list[nn.Parameter], group: Group) -> None:
        super().__init__(numbers, parameters, group)
        self._weights = self.new_vector()
        for parameter, place in zip(self.parameters, self.places(self._weights)):
            place.copy_(parameter.detach())
            parameter.data = place  # from now on the parameter lives here, and an all-gather fills it in place
        self._own = self._weights.chunk(self.ranks)[self.rank]
        for number, (inside, place) in zip(numbers, self.slices):
            if inside.start < inside.stop:
                value = self._own[place]
                master = nn.Parameter(value.float() if self.dtype in SIXTEEN_BITS else value)
                self.pieces.append(LocalShard(number, inside, place, master))

    @torch.no_grad()
    def start_reduce(self) -> None:
        """Send the gradients; `finish_reduce` adds this rank's part of their mean to `mean`. All ranks must call."""
        flat = self.new_vector()
        for parameter, place in zip(self.parameters, self.places(flat)):
            place.zero_() if parameter.grad is None else place.copy_(parameter.grad)
        self.send_gradient(flat)

    @torch.no_grad()
    def start_all_gather_weights(self) -> dist.Work:
        """Begin to gather the new weights. All ranks must call. Bytes sent by each: (N-1)/N times the bucket's."""
        if self.dtype in SIXTEEN_BITS:
            for piece in self.pieces:
                self._own[piece.place] = piece.value  # rounds the masters
        for parameter in self.parameters:
            increment_version(parameter)  # autograd refuses a graph that was made with the old numbers
        return start_all_gather(self._weights, self._own, self.group)


def part_length(sizes: Sequence[int], ranks: int) -> int:
    """Elements of each rank's part of a bucket, padding included."""
    return -(-sum(sizes) // ranks)  # rounds up


def shard_slices(sizes: Sequence[int], ranks: int, rank: int) -> list[tuple[slice, slice]]:
    """For each parameter, its elements in a rank's part, maybe none: (slice of the parameter, slice of the part)."""
    part = part_length(sizes, ranks)
    slices, begin = [], -rank * part  # of the parameter, counted from the beginning of this rank's part
    for size in sizes:
        first = min(max(begin, 0), part)
        last = max(min(begin + size, part), first)
        inside = slice(first - begin, last - begin) if first < last else slice(0, 0)
        slices.append((inside, slice(first, last)))
        begin += size
    return slices


def start_reduce_scatter(flat: Tensor, group: Group, dtype: torch.dtype) -> Callable[[], Tensor]:
    """Begin to add up all ranks' vectors, in `dtype`; the result is a function that waits for this rank's part.

    The number of ranks divides the length of `flat`, which must not change meanwhile.
    """
    # gloo makes an all-reduce of a reduce-scatter, twice the bytes: collect the own part's terms, and add them here
    is_gloo, ranks = backend_of(flat.device, group) == "gloo", dist.get_world_size(group)
    received = torch.empty_like(flat) if is_gloo else flat.new_empty(len(flat) // ranks)
    send = dist.all_to_all_single if is_gloo else reduce_scatter_single
    work: Any = send(received, flat, group=group, async_op=True)

    def finish() -> Tensor:  # holds `flat`, too: memory that is under way must not be given to others
        work.wait()
        return received.view(-1, len(flat) // ranks).sum(0, dtype=dtype)

    return finish


def start_all_gather(whole: Tensor, part: Tensor, group: Group) -> dist.Work:
    """Begin to put the ranks' parts end to end in `whole`, in rank order."""
    return all_gather_single(whole, part, group=group, async_op=True)


@torch.no_grad()
def gather_parts(buckets: Iterable[FlatShard], value_of: Callable[[LocalShard], Tensor | None]) -> dict[int, Tensor]:
    """Join `value_of` each rank's shards into whole tensors, by parameter number, in new memory, fp32 or wider.

    All ranks must call. Bytes sent by each: (N-1)/N times those of the result, and padding.
    """
    found: dict[int, Tensor] = {}
    for bucket in buckets:
        first = bucket.parameters[0].detach()
        own = first.new_zeros(bucket.part, dtype=torch.float32 if first.dtype in SIXTEEN_BITS else first.dtype)
        for piece in bucket.pieces:
            if (value := value_of(piece)) is not None:
                own[piece.place] = value
        whole = bucket.places(all_gather(own, 0, bucket.group))
        found |= {number: place.clone() for number, place in zip(bucket.numbers, whole)}
    return found


def ask_everyone(
    used: Tensor, means: Iterable[Tensor], groups: Iterable[Group], device: torch.device
) -> tuple[list[int], bool]:
    """The number of ranks that used each parameter, and whether any rank's part of the mean has inf or nan.

    All ranks must call, before a step. A loss scaler looks at its own rank's gradients only, and all scalers must
    decide alike. Each rank sends an all-reduce of 4 bytes for each parameter, and 4.

    Args:
        used: for each parameter, whether this rank has used it; int32.
        means: this rank's parts of the mean gradient.
        groups: the groups that take part, one axis after the other.
        device: the device on which the groups talk.
    """
    overflow = not all(bool(mean.isfinite().all()) for mean in means)
    counts = torch.cat([used, torch.tensor([overflow], dtype=used.dtype)]).to(device)
    for group in groups:
        counts = all_reduce(counts, group)
    *users, overflows = counts.tolist()
    return users, overflows > 0


@torch.no_grad()
def clip_parts_(
    parts: Sequence[Tensor], max_norm: float, group: Group, device: torch.device, copies: Sequence[Tensor] = ()
) -> Tensor:
    """Scale gradients of which each rank has a part down to a norm of at most `max_norm`. All ranks must call.

    `copies` are other ranks' parts that are here, too: scaled, and not counted again. Returns the norm before, the same
    on every rank. Parts do not overlap, and padding is in none: all squares add up to the whole's.
    """
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for part in parts:
        squares += part.double().square().sum()
    norm = all_reduce(squares, group).sqrt()
    for gradient in (*parts, *copies):
        gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
