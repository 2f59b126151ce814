"""What ZeRO's stages share: who owns which elements of a bucket, the reduction to that part, the norm over all.

Parameters lie end to end in a bucket, which is cut into as many equal parts as there are ranks, with zeros behind the
last one. The zeros travel and belong to no `LocalShard`: neither an optimizer nor a norm ever sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.collectives.operators import Group, all_gather_single, all_reduce, reduce_scatter_single

SIXTEEN_BITS = (torch.float16, torch.bfloat16)


class LocalShard(NamedTuple):
    """The elements of one parameter that lie in a rank's part of a bucket.

    Attributes:
        number: which parameter.
        inside: which of its elements, counted as if it were flat.
        place: where in the rank's part of the bucket.
        value: what the optimizer updates: an fp32 master, or where the parameter is wide enough its own numbers.
    """

    number: int
    inside: slice
    place: slice
    value: nn.Parameter


class FlatShard:
    """Some parameters end to end, cut into as many equal parts as there are ranks.

    Attributes:
        numbers: of the parameters in it.
        sizes: their elements.
        part: elements of a rank's part.
        cuts: for each parameter, what of it lies in this rank's part (see `cut`).
        dtype: of the rank's own part of the gradient.
        mean: this part, reduced to the mean over the ranks and summed over the passes; None before the first.
    """

    def __init__(self, numbers: list[int], parameters: Sequence[nn.Parameter], group: Group) -> None:
        self.numbers, self.group = numbers, group
        self.parameters = [parameters[number] for number in numbers]
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.part = part_length(self.sizes, self.ranks)
        self.cuts = cut(self.sizes, self.ranks, self.rank)
        self.dtype = self.parameters[0].dtype
        self.mean: Tensor | None = None
        self._reducing: Callable[[], Tensor] | None = None

    def places(self, flat: Tensor) -> list[Tensor]:
        """Where in a vector for the whole bucket each parameter lies, in its shape."""
        places = flat[: sum(self.sizes)].split(self.sizes)
        return [place.view(parameter.shape) for place, parameter in zip(places, self.parameters)]

    def new_vector(self) -> Tensor:
        """Memory for the whole bucket; only the padding has a value, 0."""
        flat = self.parameters[0].detach().new_empty(self.part * self.ranks)
        flat[sum(self.sizes) :].zero_()
        return flat

    def send_gradient(self, flat: Tensor) -> None:
        """Begin to reduce. All ranks must call. Bytes sent by each: (N-1)/N times the bucket's."""
        wide = torch.float32 if flat.dtype in SIXTEEN_BITS else flat.dtype
        self._reducing = start_reduce_scatter(flat, self.group, wide)

    @torch.no_grad()
    def finish_reduce(self) -> None:
        """Wait for this rank's part, and add it to what earlier passes left."""
        if self._reducing is not None:
            part = self._reducing().div_(self.ranks).to(self.dtype)
            self.mean = part if self.mean is None else self.mean.add_(part)
            self._reducing = None


def part_length(sizes: Sequence[int], ranks: int) -> int:
    """Elements of each rank's part of a bucket, padding included."""
    return -(-sum(sizes) // ranks)


def cut(sizes: Sequence[int], ranks: int, rank: int) -> list[tuple[slice, slice]]:
    """What of each parameter lies in a rank's part: (which of its elements, where in the part); maybe none."""
    part = part_length(sizes, ranks)
    found, begin = [], -rank * part  # of the parameter, counted from where this rank's part begins
    for size in sizes:
        first = min(max(begin, 0), part)
        last = max(min(begin + size, part), first)
        inside = slice(first - begin, last - begin) if first < last else slice(0, 0)
        found.append((inside, slice(first, last)))
        begin += size
    return found


def start_reduce_scatter(flat: Tensor, group: Group, dtype: torch.dtype | None = None) -> Callable[[], Tensor]:
    """Begin to add up all ranks' vectors, whose length the number of ranks divides.

    gloo makes a whole all-reduce of a reduce-scatter, twice the bytes. An all-to-all hands each rank everybody's
    numbers for its part, which it adds up itself: no byte more than needed, and one round.

    Args:
        flat: this rank's vector; leave it alone until the result is there.
        group: who takes part.
        dtype: of the result; None for the vector's. gloo's ranks add up in it, too.

    Returns:
        A function that waits, and returns this rank's part of the sum.
    """
    ranks = dist.get_world_size(group)
    if dist.get_backend(group) == "gloo":
        received = torch.empty_like(flat)
        work = dist.all_to_all_single(received, flat, group=group, async_op=True)
    else:
        received = flat.new_empty(len(flat) // ranks)
        work = reduce_scatter_single(received, flat, group=group, async_op=True)

    def finish() -> Tensor:
        assert work is not None
        work.wait()
        return received.view(-1, len(flat) // ranks).sum(0, dtype=dtype or flat.dtype)

    return finish


def start_all_gather(whole: Tensor, part: Tensor, group: Group) -> dist.Work:
    """Begin to put the ranks' parts end to end in `whole`, in rank order."""
    work = all_gather_single(whole, part, group=group, async_op=True)
    assert work is not None
    return work


def ask_everyone(
    used: Tensor, means: Iterable[Tensor], groups: Iterable[Group], device: torch.device
) -> tuple[list[int], bool]:
    """What must be known of all ranks before a step. All ranks must call. Each sends 4 bytes a parameter, and 4.

    Args:
        used: for each parameter, whether this rank has used it; int32.
        means: this rank's parts of the mean gradient.
        groups: who takes part, one axis after the other.
        device: where the group talks.

    Returns:
        How many ranks have used each parameter; and whether there is inf or nan in a part of any rank. A loss scaler
        looks at its own rank's gradients only, and must come to the same end as all others'.
    """
    overflow = not all(bool(mean.isfinite().all()) for mean in means)
    said = torch.cat([used, torch.tensor([overflow], dtype=used.dtype)]).to(device)
    for group in groups:
        said = all_reduce(said, group)
    *users, overflows = said.tolist()
    return users, overflows > 0


@torch.no_grad()
def clip_parts_(parts: Iterable[Tensor], max_norm: float, group: Group, device: torch.device) -> Tensor:
    """Scale gradients of which each rank has a part down to a norm of at most `max_norm`. All ranks must call.

    Returns:
        Their norm before, the same on every rank. Parts do not overlap, and padding is in none of them, so the squares
        of all ranks add up to the square of the whole.
    """
    parts = list(parts)
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for part in parts:
        squares += part.double().square().sum()
    norm = all_reduce(squares, group).sqrt()
    for part in parts:
        part.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
