"""Collectives built from nothing but point-to-point messages, so that every byte and message can be counted.

`schedules` lists each rank's sends and receives; `execute` carries them out with `isend` and `irecv`. All ranks of the
group must call, with tensors of the same shape and dtype; ranks and roots are numbers within the group. In the
docstrings p is the number of ranks and n the bytes of the tensor; parts are as equal as possible
(`torch.tensor_split`), and an empty part is not sent. Every rank ends with the same bits. Sums are in the tensor's own
dtype, and a mean divides the finished sum: 16-bit sums of many ranks lose digits and can overflow, as the backend's do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from jaxtyping import Num
from torch import Tensor

from course_lib.collectives import schedules
from course_lib.collectives.operators import Group
from course_lib.collectives.schedules import Round, Schedule

Parts = Sequence[Tensor]
"""Contiguous views of one tensor, such as `tensor.tensor_split(p)`."""
OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sum": torch.add, "mean": torch.add, "max": torch.maximum}
"""op → the function that combines two contributions; a mean is a sum that is divided at the end."""


def broadcast(tensor: Num[Tensor, "*shape"], root: int = 0, group: Group = None) -> Num[Tensor, "*shape"]:
    """Give every rank the tensor of `root`, in place, along a binomial tree of ceil(log2 p) rounds.

    Bytes sent: n for each child in the tree (`predict.broadcast`), so at most ceil(log2 p) · n for the root, 0
    for a leaf. Messages: one for each child.

    Raises:
        ValueError: no such root, or this rank is not in `group`.
    """
    world_size, rank = _place(group)
    _check_root(root, world_size)
    flat = _flat(tensor)
    execute(schedules.broadcast(world_size, rank, root), [flat], group=group)
    return _write_back(tensor, flat)


def reduce(tensor: Num[Tensor, "*shape"], root: int = 0, op: str = "sum", group: Group = None) -> Num[Tensor, "*shape"]:
    """Combine all tensors on `root`, in place, along a binomial tree; the other ranks' tensors do not change.

    Bytes sent: n by every rank but the root, which sends 0. Messages: 1 and 0.

    Raises:
        ValueError: no such root or op, a mean of integers, a complex maximum, or this rank is not in `group`.
    """
    world_size, rank = _place(group)
    _check_root(root, world_size)
    _check_op(op, tensor)
    flat = _flat(tensor) if rank == root else _flat(tensor).clone()  # inner nodes of the tree add up in a copy
    execute(schedules.reduce(world_size, rank, root), [flat], op=op, group=group)
    return _write_back(tensor, _finish(flat, op, world_size)) if rank == root else tensor


def all_reduce(
    tensor: Num[Tensor, "*shape"], op: str = "sum", algorithm: str = "ring", group: Group = None
) -> Num[Tensor, "*shape"]:
    """Combine the tensors of all ranks on every rank, in place.

    Bytes sent and messages by each rank (`predict.all_reduce`):

    - "ring": 2(p-1)/p · n in 2(p-1) messages. If p does not divide the tensor: 2n less the parts of this rank and of
      its right neighbour.
    - "direct": (p-1) · n in p-1 messages.
    - "manager": n in 1 message; (p-1) · n in p-1 messages for rank 0.
    - "tree": n for each edge of the tree: one message to the parent (not for rank 0) and one to each child.

    Raises:
        ValueError: no such op or algorithm, a mean of integers, a complex maximum, or this rank is not in `group`.
    """
    if algorithm not in schedules.ALL_REDUCE:
        raise ValueError(f"algorithm={algorithm!r}: it must be one of {', '.join(schedules.ALL_REDUCE)}")
    _check_op(op, tensor)
    world_size, rank = _place(group)
    flat = _flat(tensor)
    parts = [flat] if algorithm in schedules.WHOLE else flat.tensor_split(world_size)
    execute(schedules.ALL_REDUCE[algorithm](world_size, rank), parts, op=op, group=group)
    return _write_back(tensor, _finish(flat, op, world_size))


def reduce_scatter(
    tensor: Num[Tensor, "rows *rest"], op: str = "sum", group: Group = None
) -> Num[Tensor, "part *rest"]:
    """Combine all tensors along a ring, and return the r-th of p parts of the rows on rank r, as a new tensor.

    Bytes sent: n less the rank's own part, so (p-1)/p · n (`predict.reduce_scatter`). Messages: p-1.

    Raises:
        ValueError: a tensor without rows, or as `all_reduce`.
    """
    world_size, rank = _place(group)
    _check_rows(tensor)
    _check_op(op, tensor)
    summand = tensor.detach().clone(memory_format=torch.contiguous_format)  # the ring adds up in place
    parts = summand.tensor_split(world_size)
    execute(schedules.reduce_scatter(world_size, rank), parts, op=op, group=group)
    return _finish(parts[rank].clone(), op, world_size)


def all_gather(
    tensor: Num[Tensor, "part *rest"], rows: int | None = None, group: Group = None
) -> Num[Tensor, "rows *rest"]:
    """Concatenate the rows of all ranks along a ring, in rank order, as a new tensor on every rank.

    Args:
        tensor: this rank's rows.
        rows: rows of the result, of which rank r brings the r-th of p parts: the inverse of `reduce_scatter`. None if
            every rank brings as many as this one.
        group: the ranks that take part.

    Bytes sent: the result less the right neighbour's part, so (p-1)/p · n of an n-byte result
    (`predict.all_gather`). Messages: p-1.

    Raises:
        ValueError: a tensor without rows, or not as many as `rows` gives this rank; or this rank is not in `group`.
    """
    world_size, rank = _place(group)
    _check_rows(tensor)
    lengths = [len(tensor)] * world_size if rows is None else split_sizes(rows, world_size)  # every rank's rows
    if lengths[rank] != len(tensor):
        raise ValueError(
            f"rank {rank} brings {len(tensor)} rows, but its part of rows={rows} is {lengths[rank]}: pass what "
            f"reduce_scatter left here, and as rows the number of rows before it"
        )
    gathered = tensor.new_empty(sum(lengths), *tensor.shape[1:])
    parts = gathered.split(lengths)
    parts[rank].copy_(tensor.detach())  # the ring brings the other parts
    execute(schedules.all_gather(world_size, rank), parts, group=group)
    return gathered


def all_to_all(tensor: Num[Tensor, "rows *rest"], group: Group = None) -> Num[Tensor, "received *rest"]:
    """Send the q-th of p parts of the rows to rank q, by pairwise swaps; return the parts sent here, in rank order.

    Bytes sent: n less the rank's own part, so (p-1)/p · n (`predict.all_to_all`). Messages: p-1.

    Raises:
        ValueError: a tensor without rows, or this rank is not in `group`.
    """
    world_size, rank = _place(group)
    _check_rows(tensor)
    outgoing = tensor.detach().contiguous().tensor_split(world_size)
    incoming = tensor.new_empty(world_size, *outgoing[rank].shape)  # from each rank, its part number `rank`
    incoming[rank].copy_(outgoing[rank])  # a rank does not send its own part
    execute(schedules.all_to_all(world_size, rank), outgoing, incoming.unbind(), group=group)
    return incoming.flatten(0, 1)


def execute(
    schedule: Schedule, outgoing: Parts, incoming: Parts | None = None, *, op: str = "sum", group: Group = None
) -> None:
    """Carry out this rank's `schedule`: send parts of `outgoing`, change parts of `incoming` (None for `outgoing`).

    All ranks of the group must call, each with its own list of rounds.
    """
    incoming = outgoing if incoming is None else incoming
    for each in schedule:
        targets = [incoming[receive.part] for receive in each.receives]
        arrived = [torch.empty_like(t) if r.add else t for r, t in zip(each.receives, targets)]  # a summand needs room
        posts = [(dist.isend, outgoing[send.part], send.to) for send in each.sends]
        posts += [(dist.irecv, buffer, receive.source) for receive, buffer in zip(each.receives, arrived)]
        _exchange([post for post in posts if post[1].numel()], group)  # both ends know the size, and skip it alike
        _add_up(each, incoming, arrived, op, _place(group)[1])


def split_sizes(length: int, world_size: int) -> list[int]:
    """Sizes of `world_size` parts of `length`, which differ by at most one, the larger ones first."""
    return [length // world_size + (rank < length % world_size) for rank in range(world_size)]


def _exchange(posts: list[tuple[Callable, Tensor, int]], group: Group) -> None:
    """Post all sends and receives, then wait for all: so the order inside a round cannot matter."""
    ops = [dist.P2POp(verb, tensor, group=group, group_peer=peer) for verb, tensor, peer in posts]
    for work in dist.batch_isend_irecv(ops) if ops else []:  # which refuses an empty list
        work.wait()


def _add_up(each: Round, incoming: Parts, arrived: list[Tensor], op: str, rank: int) -> None:
    """Combine the shares that arrived and this rank's own, in rank order: floating-point sums depend on the order, and
    ranks that add up the same shares must end with the same bits."""
    shares: dict[int, dict[int, Tensor]] = {}
    for receive, buffer in zip(each.receives, arrived):
        if receive.add:
            shares.setdefault(receive.part, {})[receive.source] = buffer
    for part, others in shares.items():
        own = incoming[part]
        in_order = [share for _, share in sorted({**others, rank: own}.items())]
        own.copy_(functools.reduce(OPS[op], in_order))  # ((0 + 1) + 2) + 3, whichever came first


def _finish(flat: Tensor, op: str, world_size: int) -> Tensor:
    return flat.div_(world_size) if op == "mean" else flat


def _flat(tensor: Tensor) -> Tensor:
    """All elements as one vector: a view of a contiguous tensor, else a copy."""
    return tensor.detach().contiguous().view(-1)


def _write_back(tensor: Tensor, flat: Tensor) -> Tensor:
    if tensor.data_ptr() != flat.data_ptr() or not tensor.is_contiguous():  # `flat` is a copy
        tensor.detach().copy_(flat.view(tensor.shape))
    return tensor


def _place(group: Group) -> tuple[int, int]:
    """(world size, this rank's number) in `group`."""
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank < 0:  # torch's answer to a rank outside of the group
        raise ValueError(f"rank {dist.get_rank()} is not in this group; only its members may call")
    return world_size, rank


def _check_op(op: str, tensor: Tensor) -> None:
    if op not in OPS:
        raise ValueError(f"op={op!r}: it must be one of {', '.join(OPS)}")
    if op == "max" and tensor.is_complex():
        raise ValueError("op='max' of complex numbers, which have no order: use their abs()")
    if op == "mean" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(
            f"op='mean' of {tensor.dtype} would be cut off: convert to a floating-point dtype, or use 'sum'"
        )


def _check_root(root: int, world_size: int) -> None:
    if not 0 <= root < world_size:
        raise ValueError(f"root={root}: the group has {world_size} ranks, which count from 0")


def _check_rows(tensor: Tensor) -> None:
    if tensor.dim() == 0:
        raise ValueError("a tensor without dims has no rows to cut into parts: use tensor.view(1), or all_reduce")
