"""What a sharded optimizer must do. Each check runs on ranks and raises where it is not so.

The tests call these with `ZeroOptimizer`, and with the known-wrong ones of `tests/mutants/parallel/zero.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib import measure, predict
from course_lib.model.gpt import GPT, GPTConfig
from tests.parallel import checks
from tests.parallel.checks import Joined, assert_same

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, float]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}),
    "adam": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


def check_parity(
    zero: Callable[..., Any], make: Callable, optimizer: str, stage: int, max_norm: float = 0.0, passes: int = 1
) -> None:
    """After every step, the weights are those of a single device's step on the joined batch. All ranks must call.

    Replicas start with other weights on every rank; biases and norms are a group of their own, without decay.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    single, batch = make(seed=0)
    oracle, (module, _) = Joined(single, world_size * passes), make(seed=rank)
    for mine, whole in zip(module.buffers(), single.buffers()):
        mine.copy_(whole)  # an optimizer knows of parameters only
    kind, settings = OPTIMIZERS[optimizer]
    ours = zero(groups_of(module), kind, stage=stage, bucket_bytes=256, **settings)
    theirs = kind(groups_of(single), **settings)
    for step in range(5):
        parts = [batch(passes * step + i) for i in range(passes)]
        theirs.zero_grad()
        oracle(*(torch.cat(each) for each in zip(*parts))).backward()
        ours.zero_grad()
        for part in parts:
            inputs, targets = (tensor.chunk(world_size)[rank] for tensor in part)
            (module(inputs, targets) / passes).backward()
        if max_norm:
            trainable = [p for p in single.parameters() if p.requires_grad]
            due = torch.nn.utils.clip_grad_norm_(trainable, max_norm)
            norm = ours.clip_grad_norm_(max_norm)
            assert abs(norm - due) < 1e-6 * due, f"the norm in step {step} is {norm:.6f}, but should be {due:.6f}"
        theirs.step()
        ours.step()
        assert_same(module, single, f"after step {step}", gradients=False)


def groups_of(module: nn.Module) -> list[dict[str, Any]]:
    """Matrices, and without decay all else."""
    parameters = list(module.parameters())
    flat = [parameter for parameter in parameters if parameter.ndim < 2]
    return [{"params": [p for p in parameters if p.ndim > 1]}, {"params": flat, "weight_decay": 0.0}]


CONFIG = GPTConfig(layers=2, width=32, heads=2, vocab_size=40, context=8)


def check_bytes(zero: Callable[..., Any], stage: int) -> None:
    """What a rank holds between backward pass and step, and between steps, and what it sends: the paper's bytes.

    Weights in bf16; counted by the tracker of storages and by the sockets. All ranks must call.
    """
    ranks = dist.get_world_size()
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    with measure.memory(inputs=tokens) as record:
        model = GPT(CONFIG, dtype=torch.bfloat16)
        before = record.now.total
        optimizer = zero(model.parameters(), torch.optim.AdamW, stage=stage, bucket_bytes=2**14, lr=1e-3)
        for _ in range(2):
            model(tokens, tokens).backward()
            with_gradients = record.now.total
            with measure.traffic() as sent:
                optimizer.step()
            optimizer.zero_grad()
            between = record.now.total
    psi = sum(parameter.numel() for parameter in model.parameters())
    slack = 64 * len(list(model.parameters())) + 16 * ranks * len(optimizer.buckets)  # Adam's step counts, padding
    states, gradients = 12 * psi / ranks, 2 * psi / (ranks if stage == 2 else 1)
    for what, held, due in (
        ("between steps", between, before + states),
        ("with gradients", with_gradients, before + states + gradients),
    ):
        assert abs(held - due) <= slack, f"{what} a rank holds {held} bytes, but should hold {due:.0f}"
    if ranks > 1:
        halves = predict.all_gather(2 * psi, ranks).bytes * (2 if stage == 1 else 1)
        used = predict.all_reduce(4 * len(list(model.parameters())), ranks).bytes
        assert sent.sent_bytes <= 1.1 * (halves + used) + 64 * len(optimizer.buckets) * ranks, (
            f"step sends {sent.sent_bytes} bytes, where {halves} do"
        )


def every_parity(zero: Callable[..., Any]) -> None:
    """All that a stage must be equal in."""
    for stage in (1, 2):
        for make in (checks.gpt, checks.odd):
            for optimizer in OPTIMIZERS:
                check_parity(zero, make, optimizer, stage)
            check_parity(zero, make, "adam", stage, passes=2)
        check_parity(zero, checks.gpt, "sgd", stage, max_norm=0.05)  # torch sums the odd one's squares in two dtypes
