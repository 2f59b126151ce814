"""What a data-parallel wrapper and an all-reduce must do. Each check runs on ranks and raises where it is not so.

The tests call these with the library's classes, and with the known-wrong ones of `tests/mutants/parallel`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_kit import measure
from course_lib import predict
from course_lib.collectives.algorithms import split_sizes
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel import plan_buckets
from course_lib.train.step import train_step

TINY = GPTConfig(layers=2, width=8, heads=2, vocab_size=11, context=6)
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1),
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


class Odd(nn.Module):
    """Everything that makes data parallelism hard, in one small model.

    Its branch depends on the data, so on the rank; one layer is used twice, one is frozen, one is never used, one only
    in some steps; two dtypes; a buffer; memory that is not contiguous.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.twice = nn.Linear(4, 4)
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)
        self.frozen, self.never = nn.Linear(4, 3).requires_grad_(False), nn.Linear(4, 3)
        self.rare = nn.Parameter(torch.randn(3))
        self.double()
        self.small = nn.Parameter(torch.ones(3, dtype=torch.float32))
        self.turned = nn.Parameter(torch.randn(3, 4).double().t())
        self.register_buffer("offset", torch.randn(3).double())

    def forward(self, x: Tensor, choice: Tensor) -> Tensor:
        """Some loss."""
        hidden = self.twice(torch.tanh(self.twice(x)))
        branch = self.left if choice[0] % 2 else self.right
        out = branch(hidden) + self.frozen(x) + x @ self.turned + self.offset
        if choice[0] >= 4:
            out = out * self.rare
        linear = (self.small * choice[0]).sum()  # so that float32's rounding stays in `small`
        return out.square().mean() + linear.double()


class Joined(nn.Module):
    """One device's view of the whole batch: the mean of the losses of `shares` equal shares."""

    def __init__(self, module: nn.Module, shares: int) -> None:
        super().__init__()
        self.module, self.shares = module, shares

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        pairs = zip(inputs.chunk(self.shares), targets.chunk(self.shares))
        return torch.stack([self.module(x, y) for x, y in pairs]).mean()


def gpt(seed: int) -> tuple[nn.Module, Callable[[int], tuple[Tensor, Tensor]]]:
    """A tiny tied GPT and its batches: step → (inputs, targets) of all ranks together, 2 sequences each."""

    def batch(step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, 11, (2 * dist.get_world_size(), 7), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    return GPT(TINY, seed=seed, dtype=torch.float64), batch


def odd(seed: int) -> tuple[nn.Module, Callable[[int], tuple[Tensor, Tensor]]]:
    """The odd model and batches on which the ranks choose different branches, in other steps the same one."""

    def batch(step: int) -> tuple[Tensor, Tensor]:
        world_size = dist.get_world_size()
        inputs = torch.randn(2 * world_size, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        choices = [[0] * 8, [0, 1] * 4, [0, 1, 5, 0, 1, 0, 4, 1], [4] * 8, [1, 0] * 4, [1] * 8][step % 6]
        return inputs, torch.tensor(choices[:world_size]).repeat_interleave(2)

    return Odd(seed), batch


def check_parity(wrap: Callable[[nn.Module], Any], make: Callable, optimizer: str, micro_batches: int = 1) -> None:
    """After every step, gradients and weights are those of `train_step` on the joined batch. All ranks must call.

    Replicas start with other weights on every rank, so that a missing broadcast shows.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    single, batch = make(seed=0)
    oracle = Joined(single, world_size * micro_batches)
    module, _ = make(seed=rank)
    replica = wrap(module)
    ours, theirs = OPTIMIZERS[optimizer](module.parameters()), OPTIMIZERS[optimizer](single.parameters())
    assert_same(module, single, "at the start", gradients=False)
    for step in range(6):
        parts = [batch(micro_batches * step + i) for i in range(micro_batches)]
        joined = tuple(torch.cat(each) for each in zip(*parts))
        train_step(oracle, theirs, joined)  # type: ignore[arg-type]
        ours.zero_grad(set_to_none=True)
        for i, part in enumerate(parts):
            with replica.no_sync() if i < micro_batches - 1 else nullcontext():
                inputs, targets = (tensor.chunk(world_size)[rank] for tensor in part)
                (replica(inputs, targets) / micro_batches).backward()
        if hasattr(replica, "synchronize"):
            replica.synchronize()
        ours.step()
        assert_same(module, single, f"after step {step}")


def assert_same(ours: nn.Module, theirs: nn.Module, when: str, gradients: bool = True) -> None:
    """Values differ by no more than a few hundred roundings of numbers around 1, which Adam's division enlarges."""
    other = dict(theirs.named_parameters())
    for name, p in ours.named_parameters():
        q = other[name]
        limit = 1e4 * torch.finfo(p.dtype).eps
        assert (p - q).abs().max() <= limit, f"{when}: {name} is off by {(p - q).abs().max():.1e}"
        if gradients:
            assert (p.grad is None) == (q.grad is None), f"{when}: {name}.grad is {p.grad}, the oracle's is {q.grad}"
            if p.grad is not None and q.grad is not None:
                off = (p.grad - q.grad).abs().max()
                assert off <= limit, f"{when}: the gradient of {name} is off by {off:.1e}"
    for (name, b), c in zip(ours.named_buffers(), theirs.buffers()):
        assert torch.equal(b, c), f"{when}: buffer {name} differs"


def check_traffic(wrap: Callable[..., Any], make: Callable, bucket_bytes: int) -> None:
    """A step sends every trainable gradient once, with one number per parameter, in the planned number of messages,
    and `no_sync` sends nothing. Counted in the second step: the first one may pack the buckets anew."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    module, batch = make(seed=0)
    replica = wrap(module, bucket_bytes=bucket_bytes)
    trainable = [p for p in module.parameters() if p.requires_grad]
    for step in range(3):
        inputs, targets = (tensor.chunk(world_size)[rank] for tensor in batch(step))
        with measure.traffic() as quiet, replica.no_sync():
            replica(inputs, targets).backward()
        assert quiet.total_messages == 0, f"no_sync sent {dict(quiet.messages)}"
        with measure.traffic() as sent:
            replica(inputs, targets).backward()
            replica.synchronize()
        if step == 0:
            continue
        expected_bytes = sum(p.nbytes + p.itemsize for p in trainable)
        slack = 2 * len(plan_buckets(trainable, bucket_bytes))  # each bucket's formula rounds to a byte
        assert set(sent.messages) <= {"all_reduce"}, f"sent {dict(sent.messages)}"
        assert abs(sent.total_bytes - predict.all_reduce(expected_bytes, world_size).bytes) <= slack, (
            f"sent {sent.total_bytes} bytes where {predict.all_reduce(expected_bytes, world_size).bytes} do"
        )
        kinds = len({p.dtype for p in trainable})  # one bucket of each dtype may be left half full
        most = min(len(trainable), expected_bytes // bucket_bytes + kinds)
        assert sent.total_messages <= most, f"sent {sent.total_messages} messages, at most {most} are needed"
        if bucket_bytes == 1:
            assert sent.total_messages == len(trainable), f"sent {sent.total_messages} messages"


def check_all_reduce(all_reduce: Callable[..., Any], algorithm: str) -> None:
    """Sum and mean are right on every rank, in the bytes and messages of the formula. All ranks must call."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for n_elements in (0, 1, 5, 840):
        terms = [torch.arange(n_elements, dtype=torch.float64) + 10 * r for r in range(world_size)]
        for op, want in (("sum", torch.stack(terms).sum(0)), ("mean", torch.stack(terms).mean(0))):
            x = terms[rank].clone()
            with measure.traffic() as sent:
                all_reduce(x, op)
            torch.testing.assert_close(x, want, rtol=1e-12, atol=0)
            parts = split_sizes(n_elements, world_size)
            ring = 8 * (2 * n_elements - parts[rank] - parts[(rank + 1) % world_size])
            formula = predict.all_reduce(8 * n_elements, world_size, algorithm, rank)
            assert sent.total_bytes == (ring if algorithm == "ring" else formula.bytes), (
                f"{sent.total_bytes} bytes were sent"
            )
            if n_elements >= world_size:
                assert sent.total_messages == formula.messages


def agree(is_so: bool, problem: str) -> None:
    """An assertion about this rank alone: it raises on all ranks, or on none."""
    said: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(said, "" if is_so else problem)
    assert not any(said), next(filter(None, said))
