"""Known-wrong all-reduces that claim to be rings."""

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import algorithms as collectives
from course_lib.collectives.algorithms import execute
from course_lib.collectives.schedules import Receive, Round, Send


def whole_tensors_round_the_ring(x: Tensor, op: str) -> None:
    """The right sum, from p - 1 whole tensors that each rank hands on."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    travelling, total = x.clone(), x.clone()
    for _ in range(world_size - 1):
        arrived = torch.empty_like(x)
        execute([Round((Send(right),), (Receive(left),))], [travelling], [arrived])
        total += arrived
        travelling = arrived
    x.copy_(total / world_size if op == "mean" else total)


def everyone_to_everyone_in_disguise(x: Tensor, op: str) -> None:
    """Not a ring at all."""
    collectives.all_reduce(x, op, "direct")


def the_backends_own(x: Tensor, op: str) -> None:
    """Lets the library do the work."""
    dist.all_reduce(x)
    if op == "mean":
        x /= dist.get_world_size()


def without_the_last_round(x: Tensor, op: str) -> None:
    """Stops one round early: one part stays unfinished on each rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    schedule = collectives.schedules.all_reduce_ring(world_size, rank)[:-1]
    execute(schedule, x.tensor_split(world_size), op=op)
    if op == "mean":
        x /= world_size


def sum_for_mean(x: Tensor, op: str) -> None:
    """Forgets 1/p."""
    collectives.all_reduce(x, "sum", "ring")


def drops_the_rest(x: Tensor, op: str) -> None:
    """Cuts the tensor into p parts of equal size and forgets what is left over."""
    collectives.all_reduce(x[: x.numel() // dist.get_world_size() * dist.get_world_size()], op, "ring")


WRONG = [
    whole_tensors_round_the_ring,
    everyone_to_everyone_in_disguise,
    the_backends_own,
    without_the_last_round,
    sum_for_mean,
    drops_the_rest,
]
