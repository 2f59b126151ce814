"""Data parallelism: every rank holds the whole model, sees its own part of the batch, and all take the same step.

    replica = BucketedDataParallel(model)
    loss = replica(inputs, targets)
    loss.backward()
    replica.synchronize()      # every gradient is now the mean over all ranks
    optimizer.step()

If every rank's loss is the mean over equally many tokens, the mean of their gradients is the gradient of the joined
batch, so weights that begin equal stay equal.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from course_lib.collectives.operators import Group
from course_lib.model.seeds import mix

AllReduce = Callable[[Tensor, Group], dist.Work | None]
"""A function that sums a tensor over the group, in place, and may return a handle before the sum is done."""


def start_all_reduce(tensor: Tensor, group: Group) -> dist.Work | None:
    """Begin the backend's own sum."""
    return dist.all_reduce(tensor, group=group, async_op=True)


_UNFINISHED = (
    "a new pass begins, but synchronize() was not called after the last backward pass: call it there, or, to add up "
    "gradients, wrap every backward pass but the last in no_sync(). (Two wrappers around one module end here too, and "
    "a weight that several recomputed segments share: each finishes a gradient for it. There, take NaiveDataParallel.)"
)


class NaiveDataParallel(nn.Module):
    """After the backward pass, average the gradients one by one.

    All ranks must wrap, and call `synchronize`. Bytes sent by each rank and step, with a ring: 2(p-1)/p times
    the gradients' bytes plus 4 for each parameter; one call per parameter that any rank used, and one before them.

    Args:
        module: the replica. Its parameters and buffers take the values of the group's first rank, at construction only:
            batch-norm's running statistics, for one, drift apart later.
        group: the ranks that hold a replica.

    Raises:
        ValueError: the ranks' modules differ in a parameter's or buffer's name, shape, dtype or `requires_grad`.
    """

    def __init__(self, module: nn.Module, group: Group = None) -> None:
        super().__init__()
        self.module = module
        self.group = group
        self.world_size = dist.get_world_size(group)
        check_same_everywhere(module, group)
        broadcast_module(module, group)
        self._trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass."""
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Wrap all but the last backward pass of an accumulated batch: nothing to do, where `synchronize` sends all."""
        yield

    def synchronize(self) -> None:
        """Replace every gradient by its mean over the ranks; call this after the backward pass, on all ranks.

        A rank that did not use a parameter counts as a gradient of 0; the gradient of one that no rank used stays None.
        """
        self._check_frozen()
        users = torch.tensor([p.grad is not None for p in self._trainable], dtype=torch.int32)
        if self._trainable:  # ranks must agree on which parameters are sent, or one waits forever
            users = users.to(self._trainable[0].device)
            dist.all_reduce(users, group=self.group)
        for parameter, used in zip(self._trainable, users.tolist()):
            if used:
                grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                # the mean of N shares: divided before the sum, which may overflow
                parameter.grad = grad.detach().contiguous().div_(self.world_size)
                dist.all_reduce(parameter.grad, group=self.group)

    def _check_frozen(self) -> None:
        if any(parameter.requires_grad for parameter in self._frozen):
            raise ValueError(
                "a parameter that was frozen when the module was wrapped now has requires_grad=True, so the ranks "
                "would drift apart: unfreeze first, then wrap again"
            )


class BucketedDataParallel(NaiveDataParallel):
    """Average the gradients in buckets, each sent as soon as the backward pass has filled it.

    All ranks must wrap, and call `synchronize`. Bytes sent by each rank and step, with a ring: 2(p-1)/p times
    the bytes of all `buckets`, which hold the gradients and one number per parameter; one call per bucket. Buckets are
    sent in the same order on every rank and `synchronize` sends those that never got full, so ranks that go through
    different branches of a model neither hang nor get a wrong mean.

    The first synchronised step shows in which order gradients really arrive (on the group's first rank); the buckets
    are then packed anew in that order, once (an extra broadcast of 8 bytes per parameter).

    Args:
        module, group: as in `NaiveDataParallel`.
        bucket_bytes: a bucket is closed once it holds so many bytes of gradients. The default, 25 MiB, is also
            DistributedDataParallel's; on your network, measure.
        overlap: send during the backward pass; False keeps everything for `synchronize`.
        all_reduce: sums a bucket; another one may compress, or be one of `collectives.algorithms`.

    Raises:
        ValueError: the ranks' modules differ, or `bucket_bytes` is not positive.
    """

    def __init__(
        self, module: nn.Module, group: Group = None, bucket_bytes: int = 25 * 2**20, overlap: bool = True,
        all_reduce: AllReduce = start_all_reduce,
    ) -> None:  # fmt: skip
        super().__init__(module, group)
        self.bucket_bytes, self.overlap, self._all_reduce = bucket_bytes, overlap, all_reduce
        self._syncing = True  # False inside no_sync()
        self._arrivals: dict[int, None] | None = {}  # parameter numbers, in the order of the first pass; then None
        self._pack(None)
        watch_gradients(self._trainable, self._on_gradient)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass; a ValueError if `synchronize` has not followed the last backward pass."""
        if torch.is_grad_enabled() and any(bucket.ready for bucket in self.buckets):
            raise ValueError(_UNFINISHED)
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes in this block only add up locally. Wrap all but the last micro-batch in it."""
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, also those that a broken backward pass has left in buckets."""
        for bucket in self.buckets:
            bucket.finish()
        self._sent = 0
        super().zero_grad(set_to_none)

    def synchronize(self) -> None:
        """Send the buckets that are not yet on their way, and wait until every gradient is its mean over the ranks.

        Call this after the backward pass, on all ranks. Afterwards each `grad` is a view of its bucket, which the next
        step overwrites: clone a gradient that you want to keep.

        Raises:
            ValueError: called inside `no_sync()`, or a parameter was unfrozen.
        """
        self._check_frozen()
        if not self._syncing:
            raise ValueError("synchronize() inside no_sync(): call it after the block, behind the last backward pass")
        while self._sent < len(self.buckets):
            self._send_next()
        for bucket in self.buckets:
            bucket.finish()
        self._sent = 0
        if self._arrivals is not None:
            self._pack(self._agreed_order(list(self._arrivals)))
            self._arrivals = None

    def _pack(self, order: list[int] | None) -> None:
        """Plan the buckets, and make their buffers."""
        plan = plan_buckets(self._trainable, self.bucket_bytes, order)
        self.buckets = [Bucket([self._trainable[number] for number in numbers]) for numbers in plan]
        self._bucket_of = {number: bucket for bucket, numbers in zip(self.buckets, plan) for number in numbers}
        self._sent = 0  # buckets of this step that are on their way

    def _on_gradient(self, number: int) -> None:
        """Note that a parameter's gradient is complete; called in the middle of the backward pass."""
        if not self._syncing:
            return
        bucket = self._bucket_of[number]
        if number in bucket.ready:
            raise ValueError(_UNFINISHED)
        bucket.ready.add(number)
        if self._arrivals is not None:
            self._arrivals[number] = None  # the first step notes the order, and the buckets are packed anew
        while self.overlap and self._sent < len(self.buckets) and self.buckets[self._sent].is_full:
            self._send_next()

    def _send_next(self) -> None:
        bucket = self.buckets[self._sent]  # in the plan's order, full or not: collectives must match across ranks
        bucket.fill(1 / self.world_size)
        bucket.work = self._all_reduce(bucket.flat, self.group)
        self._sent += 1

    def _agreed_order(self, arrived: list[int]) -> list[int]:
        """The order in which gradients arrived on the group's first rank; those that did not come last."""
        if not self._trainable:
            return []
        seen = set(arrived)
        order = arrived + [n for n in reversed(range(len(self._trainable))) if n not in seen]
        shared = torch.tensor(order, device=self._trainable[0].device)
        dist.broadcast(shared, group_src=0, group=self.group)
        return shared.tolist()


class Bucket:
    """The gradients of a few parameters in one flat buffer; behind them, for each, the number of ranks that had one.

    A parameter that took part on no rank must keep `grad = None`: an optimizer with momentum or weight decay would
    move it on a gradient of zeros. The numbers behind the gradients tell, without a message of their own.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        self.flat: Float[Tensor, " elements"] = parameters[0].detach().new_zeros(sum(sizes) + len(sizes))  # is reduced
        *gradients, self._users = self.flat.split([*sizes, len(sizes)])
        self._views = [gradient.view(parameter.shape) for gradient, parameter in zip(gradients, parameters)]
        self._absent: list[int] = []  # places of the parameters without a gradient on this rank
        self.ready: set[int] = set()  # numbers of the parameters whose gradient this backward pass has finished
        self.work: dist.Work | None = None  # the reduction under way

    @property
    def is_full(self) -> bool:
        """Whether every gradient has arrived."""
        return len(self.ready) == len(self.parameters)

    @torch.no_grad()
    def fill(self, share: float) -> None:
        """Copy the gradients in, times `share`; each `grad` becomes a view, so that nothing is copied back.

        Raises:
            ValueError: a gradient is sparse.
        """
        present = [i for i, parameter in enumerate(self.parameters) if parameter.grad is not None]
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if any(grad.layout != torch.strided for grad in grads):
            raise ValueError("a gradient is sparse, and buckets are dense: build its layer with sparse=False")
        self._users.fill_(1.0)  # times share: positive after the sum, if any rank had a gradient
        if grads:  # one call for all: cheaper than a call for each of many small tensors
            torch._foreach_copy_([self._views[i] for i in present], grads)  # type: ignore[attr-defined]
        self._absent = sorted(set(range(len(self.parameters))) - set(present))
        for i in self._absent:
            self._views[i].zero_()
            self._users[i] = 0.0
        self.flat.mul_(share)
        for i in present:
            self.parameters[i].grad = self._views[i]

    def finish(self) -> None:
        """Wait for the reduction; a parameter that only other ranks used gets its gradient here."""
        if self.work is not None:
            self.work.wait()
        users = self._users.tolist() if self._absent else []
        for i in self._absent:
            if users[i]:
                self.parameters[i].grad = self._views[i]
        self.work = None
        self.ready.clear()


def plan_buckets(
    parameters: Sequence[Tensor], bucket_bytes: int, order: Sequence[int] | None = None
) -> list[list[int]]:
    """Plan buckets: parameter numbers, in the order in which the backward pass finishes their gradients.

    A bucket is closed as soon as it holds `bucket_bytes` or more (with 1, each parameter has its own), and has one
    dtype and one device. Gradients are expected in `order`, by default in the reverse of `parameters`; buckets come in
    the order in which they get full.

    Raises:
        ValueError: `bucket_bytes` is not positive.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes={bucket_bytes}: give at least 1 (25 MiB is {25 * 2**20})")
    order = range(len(parameters) - 1, -1, -1) if order is None else order
    closed: list[list[int]] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for number in order:
        kind = parameters[number].dtype, parameters[number].device
        open_buckets.setdefault(kind, []).append(number)
        if sum(parameters[n].nbytes for n in open_buckets[kind]) >= bucket_bytes:
            closed.append(open_buckets.pop(kind))
    turn = {number: position for position, number in enumerate(order)}
    return sorted([*closed, *open_buckets.values()], key=lambda bucket: turn[bucket[-1]])  # its last gradient fills it


def watch_gradients(parameters: Sequence[nn.Parameter], on_gradient: Callable[[int], None]) -> None:
    """Call a method with a parameter's number whenever a backward pass has finished the parameter's gradient."""
    # weak: a hook, which lives on its parameter, must not keep the method's object alive, and goes when the object goes
    weak_method, owner = weakref.WeakMethod(on_gradient), on_gradient.__self__  # type: ignore[attr-defined]

    def call(number: int, _parameter: Tensor) -> None:
        if (method := weak_method()) is not None:
            method(number)

    handles = [p.register_post_accumulate_grad_hook(partial(call, number)) for number, p in enumerate(parameters)]
    weakref.finalize(owner, lambda: [handle.remove() for handle in handles]).atexit = False


def check_same_everywhere(module: nn.Module, group: Group = None) -> None:
    """Compare the ranks' modules before anything else travels. All ranks must call.

    Raises:
        ValueError: on every rank, if a parameter or buffer differs in name, shape, dtype or `requires_grad`.
    """
    named = [*module.named_parameters(), *module.named_buffers()]
    tensors = [f"{name} {tuple(t.shape)} {t.dtype}{' trainable' if t.requires_grad else ''}" for name, t in named]
    on_rank: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(on_rank, tensors, group=group)
    for rank, theirs in enumerate(on_rank):
        odd = [pair for pair in zip(theirs, on_rank[0]) if pair[0] != pair[1]]
        if odd or len(theirs) != len(on_rank[0]):
            here, there = odd[0] if odd else (f"{len(theirs)} tensors", f"{len(on_rank[0])}")
            raise ValueError(
                f"the replicas differ: rank {rank} of the group has {here}, rank 0 has {there}; build the same on all"
            )


def broadcast_module(module: nn.Module, group: Group = None) -> None:
    """Give all parameters and buffers the values of the group's first rank, in place. All ranks must call.

    Bytes sent: at most ceil(log2 p) times the module's, by the first rank of a tree; one call per tensor.
    """
    broadcast_tensors([*module.parameters(), *module.buffers()], group)


def broadcast_tensors(tensors: Sequence[Tensor], group: Group = None) -> None:
    """Give tensors the values of the group's first rank, in place, contiguous or not. All ranks must call."""
    for tensor in tensors:
        values = tensor.detach().contiguous()
        dist.broadcast(values, group_src=0, group=group)
        if values.data_ptr() != tensor.data_ptr():  # contiguous() has made a copy
            tensor.detach().copy_(values)


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that a state dict has: not those of `persistent=False`, which the constructor makes again."""
    saved = module.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in module.named_buffers() if name in saved}


@dataclass(frozen=True)
class ShardedSampler:
    """The numbers of the items that one rank reads. Every item is read exactly once an epoch, by one rank.

    The last batch may be smaller. Shares then differ by one item, and some may be empty; yet all ranks make the same
    number of steps, so none is left waiting. (`torch.utils.data.DistributedSampler` repeats items instead, or drops
    them.) Weigh the mean losses of shares of different size by their number of items.

    Attributes:
        n_items: items in the data set.
        batch_size: items in a batch of all ranks together.
        rank, world_size: the rank that reads, and the number of ranks.
        seed: names the order.
        shuffle: False reads the items in their own order.

    Raises:
        ValueError: a size is not positive, or there is no such rank.
    """

    n_items: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.n_items < 0 or self.batch_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"n_items={self.n_items}, batch_size={self.batch_size}, rank={self.rank}, "
                f"world_size={self.world_size}: give 0 or more items, 1 or more a batch, and a rank below world_size"
            )

    def __len__(self) -> int:
        """Steps in an epoch, the same for every rank."""
        return -(-self.n_items // self.batch_size)

    def epoch(self, number: int) -> list[list[int]]:
        """This rank's items, step by step; fits `DataLoader(batch_sampler=...)` as long as no share is empty."""
        generator = torch.Generator().manual_seed(mix(self.seed, number))  # the same order on every rank
        order = torch.randperm(self.n_items, generator=generator) if self.shuffle else torch.arange(self.n_items)
        batches = [order[step * self.batch_size :][: self.batch_size] for step in range(len(self))]
        return [batch.tensor_split(self.world_size)[self.rank].tolist() for batch in batches]
