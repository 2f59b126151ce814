"""ZeRO-R: less memory for activations, buffers and fragments, which are left when the model's states are cut.

    memory = CheckpointMemory(elements, dtype)                        # once, before training
    memory.clear()                                                    # before each step
    for block in blocks:                                              # cut over the tensor ranks of `group`
        x = recompute_part(block, x, group, memory)
    ...
    average_through(buffer, [p.grad for p in parameters])

The three parts of Rajbhandari et al. 2020, §6, with their names there. P_a: under tensor parallelism every rank has
the same stream, so of each checkpoint a rank keeps 1/t, and gathers the whole when the block is computed again. C_B:
messages go through a buffer whose size does not grow with the model. M_D: checkpoints, which live long, lie in one
piece of memory that was taken beforehand, so that tensors with a short life leave no holes between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib.collectives.operators import Group
from course_lib.parallel.zero import part_length, start_all_gather
from course_lib.train.recompute import recompute


class Kept(NamedTuple):
    """A rank's part of a checkpoint."""

    part: Tensor  # with padding: all ranks have as many elements
    shape: torch.Size  # of the whole
    turn: int  # of the `CheckpointMemory` that holds the part


class CheckpointMemory:
    """One piece of memory for all checkpoints of a step, of as many elements as a rank's parts of them have."""

    def __init__(
        self, elements: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        self.elements = torch.empty(elements, dtype=dtype, device=device)
        self._used, self.turn = 0, 0  # turn counts the calls of `clear`: a part of an earlier turn is overwritten

    def new(self, elements: int) -> Tensor:
        """The next free places, as a view; a ValueError if there are too few."""
        free = len(self.elements) - self._used
        if elements > free:
            raise ValueError(
                f"a checkpoint needs {elements} elements, of {len(self.elements)} are {free} free: clear() the memory "
                "before each step, or give it room for all checkpoints of a step"
            )
        self._used += elements
        return self.elements[self._used - elements : self._used]

    def clear(self) -> None:
        """Begin anew: the next checkpoints overwrite those of the last step."""
        self._used = 0
        self.turn += 1


def recompute_part(
    fn: Callable[[Tensor], Tensor], x: Tensor, group: Group = None, memory: CheckpointMemory | None = None
) -> Tensor:
    """`recompute(fn, x)`, which keeps of `x` no more than this rank's part. All ranks must call, and go backward.

    Values and gradients are those of `recompute`, bit for bit. Held until the backward pass: 1/t of x, padded to equal
    parts. Bytes sent by each rank besides those of `fn`: (t-1)/t of x, in the backward pass.

    `group` are the tensor ranks: `fn` may be a block that is cut over them, and `x`, of any shape, is the same on all.
    `memory` has room for the parts; with None each gets new memory.

    Raises:
        ValueError: the memory has no room, or was cleared before the backward pass; and as `recompute`.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)

    def keep(tensor: Tensor) -> Kept:
        length = part_length([tensor.numel()], ranks)
        part = tensor.new_empty(length) if memory is None else memory.new(length)
        own = tensor.detach().reshape(-1)[rank * length : (rank + 1) * length]
        part[: len(own)] = own  # a copy: a view would keep the whole alive; the last ranks' own may be shorter
        return Kept(part, tensor.shape, 0 if memory is None else memory.turn)

    def give(kept: Kept) -> Tensor:
        if memory is not None and memory.turn != kept.turn:
            raise ValueError(
                "the checkpoint memory was cleared before the backward pass; clear() it after, not between"
            )
        whole = kept.part.new_empty(len(kept.part) * ranks)
        start_all_gather(whole, kept.part, group).wait()
        return whole[: kept.shape.numel()].view(kept.shape)

    with saved_tensors_hooks(keep, give):  # recompute saves one tensor for the backward pass, x
        return recompute(fn, x)


@torch.no_grad()
def average_through(buffer: Tensor, tensors: Iterable[Tensor], group: Group = None) -> None:
    """Put the ranks' mean into each tensor, by way of a buffer of constant size. All ranks must call.

    Small tensors share the buffer, large ones go in pieces. Bytes sent by each rank: those of an all-reduce of all
    elements in the buffer's dtype, in as few messages as the buffer allows.

    The buffer is flat, and fp32 where tensors have 16 bits; tensors are contiguous, in the same order on every rank.
    """
    if not len(buffer):
        raise ValueError("a buffer without an element given; it needs one or more")
    waiting, used = list[Tensor](), 0
    for tensor in tensors:
        rest = tensor.view(-1)
        while len(rest):
            piece, rest = rest[: len(buffer) - used], rest[len(buffer) - used :]
            buffer[used : used + len(piece)] = piece
            waiting.append(piece)
            used += len(piece)
            if used == len(buffer):
                _average(buffer, waiting, group)
                waiting, used = [], 0
    if used:
        _average(buffer[:used], waiting, group)


def _average(buffer: Tensor, pieces: list[Tensor], group: Group) -> None:
    """Average the buffer, and copy it back to the pieces, which are views of the tensors."""
    dist.all_reduce(buffer, group=group)
    buffer /= dist.get_world_size(group)
    for piece, mean in zip(pieces, buffer.split([len(piece) for piece in pieces])):
        piece.copy_(mean)
