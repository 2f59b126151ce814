"""Weights that are whole only while they are used: the buckets and units of ZeRO-3, gathered and freed.

A freed weight must vanish for good, and autograd keeps references to it for the backward pass. So it is not the tensor
that comes and goes but the memory under it: the storage is resized to nothing, and later to its size again, and what
autograd refers to has its numbers back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.collectives.operators import Group
from course_lib.parallel.data import plan_buckets
from course_lib.parallel.shards import SIXTEEN_BITS, FlatShard, LocalShard, start_all_gather


class UnshardableFlatParameter(FlatShard):
    """Parameters whose weights are there from `unshard` to `reshard`, and whose gradients until `start_reduce`.

    In between, they have their shape and NaN for values: a weight that is used without having been gathered shows.

    Attributes:
        pieces: what of each parameter this rank owns, maybe no element.
    """

    def __init__(self, numbers: list[int], parameters: Sequence[nn.Parameter], group: Group) -> None:
        super().__init__(numbers, parameters, group)
        first = self.parameters[0].detach()
        self.trains = self.parameters[0].requires_grad
        if self.dtype in SIXTEEN_BITS and self.trains:
            self.dtype = torch.float32  # of the masters
        self._own = first.new_zeros(self.part, dtype=self.dtype)
        self.pieces: list[LocalShard] = []
        for number, parameter, (inside, place) in zip(numbers, self.parameters, self.cuts):
            self._own[place] = parameter.detach().reshape(-1)[inside]
            self.pieces.append(LocalShard(number, inside, place, nn.Parameter(self._own[place], self.trains)))
        self._flat = self.new_vector()
        self._whole = self.places(self._flat)
        self._nothing = [first.new_full((), torch.nan).expand(p.shape) for p in self.parameters]
        self._gathering: dist.Work | None = None
        self._gradient: Tensor | None = None
        self._arrived: set[int] = set()
        self._empty()

    @property
    def is_unsharded(self) -> bool:
        """Whether the weights are here, or on their way."""
        return self._flat.untyped_storage().nbytes() > 0

    def start_unshard(self) -> None:
        """Ask the other ranks for their parts. All ranks must call. Each sends (N-1)/N of the bucket's bytes."""
        if not self.is_unsharded:
            self._flat.untyped_storage().resize_(self._flat.nbytes)
            self._sent = self._own.to(self._flat.dtype)
            self._gathering = start_all_gather(self._flat, self._sent, self.group)

    def finish_unshard(self) -> None:
        """Wait for the weights, and give them to the parameters."""
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None
            del self._sent
            for parameter, whole in zip(self.parameters, self._whole):
                parameter.data = whole

    def reshard(self) -> None:
        """Give the weights' memory back. Autograd's references to it remain, and see what is gathered next."""
        if self.is_unsharded:
            self.finish_unshard()
            self._empty()

    def take_gradient(self, number: int) -> None:
        """Put a parameter's gradient to the others of the bucket."""
        if self._gradient is None:
            self._gradient = self.new_vector()
            self._gradient_places = self.places(self._gradient)
        index = self.numbers.index(number)
        parameter, place = self.parameters[index], self._gradient_places[index]
        assert parameter.grad is not None
        (place.add_ if number in self._arrived else place.copy_)(parameter.grad)
        self._arrived.add(number)
        parameter.grad = None

    def start_reduce(self) -> None:
        """Send the other ranks their parts of the gradient. All ranks must call. Bytes as in `start_unshard`."""
        if not self.trains:
            return
        if self._gradient is None:
            self._gradient = self.new_vector().zero_()
        else:
            for number, place in zip(self.numbers, self._gradient_places):
                if number not in self._arrived:
                    place.zero_()
            del self._gradient_places
        self.send_gradient(self._gradient)
        self._gradient = None
        self._arrived.clear()

    def _empty(self) -> None:
        for parameter, nothing in zip(self.parameters, self._nothing):
            parameter.data = nothing
        self._flat.untyped_storage().resize_(0)


class Unit:
    """What is gathered, used and freed together.

    Attributes:
        place: in the order of the forward pass; the root unit is 0.
        is_open: its backward pass has begun, and its gradients are not yet on their way.
    """

    def __init__(self, place: int, buckets: list[UnshardableFlatParameter]) -> None:
        self.place, self.buckets, self.is_open = place, buckets, False

    def start_unshard(self) -> None:
        """Ask for all weights."""
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

    def start_reduce(self) -> None:
        """Send the other ranks their parts of the gradients."""
        for bucket in self.buckets:
            bucket.start_reduce()

    def finish_reduce(self) -> None:
        """Wait for this rank's parts."""
        for bucket in self.buckets:
            bucket.finish_reduce()


def make_unit(
    place: int, numbers: list[int], parameters: Sequence[nn.Parameter], group: Group, bucket_bytes: int
) -> Unit:
    """A unit with buckets of its trainable parameters, and of its frozen ones."""
    buckets: list[UnshardableFlatParameter] = []
    for trainable in (True, False):
        chosen = [n for n in numbers if parameters[n].requires_grad is trainable]
        plan = plan_buckets([parameters[n] for n in chosen], bucket_bytes)
        buckets += [UnshardableFlatParameter([chosen[i] for i in bucket], parameters, group) for bucket in plan]
    return Unit(place, buckets)
