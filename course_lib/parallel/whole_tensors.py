"""An optimizer's state dealt to ranks by whole tensors, for rules that a slice of a tensor cannot follow.

    optimizer = WholeTensorOptimizer(groups, Muon, lr=0.02)
    print(optimizer.deal)                # which rank has how much
    loss.backward()                      # each rank: its own share of the batch
    optimizer.step()                     # gradients go to their owners, weights come back
    optimizer.zero_grad()

ZeRO cuts all parameters, end to end, into equal parts (`zero.py`), and a part begins in the middle of a matrix. Muon
needs a matrix's singular values, LAMB its norm, Adafactor its rows. So here each parameter has one owner, which holds
the state and takes the step. The price is balance: a matrix that is larger than Ψ/N is one rank's load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_kit.units import Ratio
from course_lib.collectives.operators import Group, all_reduce
from course_lib.parallel.data import broadcast_tensors
from course_lib.parallel.zero import groups_of


class Deal(NamedTuple):
    """The owner of each tensor; prints as a line for each rank, and the largest load over the mean."""

    sizes: list[int]  # elements of each tensor
    owned: list[list[int]]  # for each rank, the numbers of its tensors

    @property
    def loads(self) -> list[int]:
        """Each rank's elements."""
        return [sum(self.sizes[number] for number in numbers) for numbers in self.owned]

    @property
    def imbalance(self) -> Ratio:
        """The largest load over the mean: 1 if all are equal."""
        return Ratio(max(self.loads) * len(self.owned) / max(1, sum(self.sizes)))

    def __str__(self) -> str:
        rows = [f"rank {r}: {load:,} elements in {len(self.owned[r])} tensors" for r, load in enumerate(self.loads)]
        return "\n".join([*rows, f"the largest load is {self.imbalance:.2f} times the mean"])


def deal_tensors(sizes: Sequence[int], ranks: int) -> Deal:
    """Deal whole tensors: the largest first, each to the rank with the least so far (Graham 1969).

    The largest load is at most 4/3 - 1/(3N) times the best deal's. Among equal ranks, the first gets the tensor.
    """
    loads, owned = [0] * ranks, [list[int]() for _ in range(ranks)]
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):  # small ones fill the gaps
        owner = loads.index(min(loads))  # the poorest so far; of equals, the first
        owned[owner].append(number)
        loads[owner] += sizes[number]
    return Deal(list(sizes), owned)


class WholeTensorOptimizer:
    """An optimizer whose state is dealt over the ranks of data parallelism, each tensor's to one rank.

    Each rank runs its share of the batch; all ranks must construct one and call `step`. The owner of Ψᵣ of Ψ weights
    sends in a step Ψ - Ψᵣ gradients, Ψᵣ weights to everyone, and an all-reduce of 4 bytes for each parameter; all ranks
    together 2(N-1)Ψ elements, as in data parallelism. For a moment `step` holds all gradients once more.
    Arguments are as of `ZeroOptimizer`, with weights in fp32 or fp64 and any rule that updates each tensor by itself.
    `deal` names each tensor's owner; a learning-rate scheduler takes `optimizer`, that of the rank's own tensors.
    """

    def __init__(self, params: Iterable[Any], optimizer_cls: Any, group: Group = None, **optimizer_args: Any) -> None:
        groups, self.group, self.rank = groups_of(params), group, dist.get_rank(group)
        everything: list[nn.Parameter] = [parameter for each in groups for parameter in each["params"]]
        if narrow := {parameter.dtype for parameter in everything} - {torch.float32, torch.float64}:
            raise ValueError(f"weights are {narrow.pop()}, and no fp32 copy is kept: give weights in fp32 or fp64")
        self.parameters = [parameter for parameter in everything if parameter.requires_grad]
        if not self.parameters:
            raise ValueError("no parameter to train: all are frozen, or none was given")
        broadcast_tensors(everything, group)
        self.deal = deal_tensors([parameter.numel() for parameter in self.parameters], dist.get_world_size(group))
        own = {id(self.parameters[number]) for number in self.deal.owned[self.rank]}
        mine = [each | {"params": [p for p in each["params"] if id(p) in own]} for each in groups]
        self.optimizer: torch.optim.Optimizer = optimizer_cls(mine, **optimizer_args)

    @torch.no_grad()
    def step(self) -> None:
        """Send gradients to their owners, update the own tensors, and get the others' weights. All ranks must call."""
        self._reduce_gradients()
        self.optimizer.step()
        for owner, numbers in enumerate(self.deal.owned):
            message, theirs = self._message(self.parameters, numbers), [self.parameters[number] for number in numbers]
            dist.broadcast(message, group_src=owner, group=self.group)
            for parameter, values in zip(theirs, message.split([parameter.numel() for parameter in theirs])):
                parameter.copy_(values.view(parameter.shape))

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def _reduce_gradients(self) -> None:
        """Give each owner the mean gradients of its tensors that any rank has used; other ranks drop theirs."""
        used = torch.tensor([p.grad is not None for p in self.parameters], dtype=torch.int32)
        users = all_reduce(used.to(self.parameters[0].device), self.group).tolist()
        loads, ranks, own = self.deal.loads, len(self.deal.owned), self.deal.owned[self.rank]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        sent = self._message(gradients, sum(self.deal.owned, []))  # rank after rank: the tensors that each owns
        received = sent.new_empty(ranks * loads[self.rank])
        dist.all_to_all_single(received, sent, [loads[self.rank]] * ranks, loads, group=self.group)
        self.zero_grad()
        means = received.view(ranks, -1).mean(0).split([self.deal.sizes[number] for number in own])
        for parameter, number, mean in zip([self.parameters[number] for number in own], own, means):
            if users[number]:
                parameter.grad = mean.view(parameter.shape).to(parameter.dtype)

    def _message(self, tensors: Sequence[Tensor], numbers: list[int]) -> Tensor:
        """The elements of the chosen tensors, maybe of none, end to end."""
        return torch.cat([tensors[0].new_empty(0), *(tensors[number].reshape(-1) for number in numbers)])
