"""What a sharded optimizer must do. Each check runs on ranks and raises where it is not so.

The tests call these with `ZeroOptimizer`, and with the known-wrong ones of `tests/mutants/parallel/zero.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_kit import measure
from course_lib import predict
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.train.gradients import gradients_of
from course_lib.train.precision import LossScaler
from tests.parallel import checks
from tests.parallel.checks import Joined, agree, assert_same

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


SCALES = {"init_scale": 2.0**18, "growth_interval": 2}
"""The tiny GPT's gradients overflow fp16 at 2^18 on every rank, at 2^17 on one or two of four."""


def check_fp16(
    zero: Callable[..., Any], stage: int, make_scaler: Callable[..., Any] = LossScaler, passes: int = 1
) -> None:
    """Weights, scale and skipped steps are those of one process in fp16 with fp32 masters, which sees all shares.

    The scale climbs into overflows of single ranks, so a rank that decides by what it holds parts from the others. All
    ranks must call.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    single, module = (GPT(checks.TINY, seed=seed, dtype=torch.float16) for seed in (0, rank))
    batch, kind, settings = checks.gpt(0)[1], *OPTIMIZERS["sgd"]
    ours = zero(module.parameters(), kind, stage=stage, bucket_bytes=256, **settings)
    masters = [nn.Parameter(parameter.detach().float()) for parameter in single.parameters()]
    theirs, their_scaler, scaler = kind(masters, **settings), LossScaler(**SCALES), make_scaler(**SCALES)
    lonely = 0
    for step in range(12):
        means = [torch.zeros_like(parameter) for parameter in single.parameters()]
        ours.zero_grad()
        for part in (batch(passes * step + i) for i in range(passes)):
            shares = list(zip(*(tensor.chunk(world_size) for tensor in part)))
            gradients = [fp16_gradients(single, share, their_scaler.get_scale() / passes) for share in shares]
            lonely += len({all(bool(each.isfinite().all()) for each in gradient) for gradient in gradients}) - 1
            for total, *parts in zip(means, *gradients):
                total += (torch.stack(parts).float().sum(0) / world_size).half()
            (scaler.scale(module(*shares[rank])) / passes).backward()
        for master, mean in zip(masters, means):
            master.grad = mean.float()
        ours.reduce_gradients()
        if step % 3 == 1:
            scaler.unscale_(ours)
            their_scaler.unscale_(theirs)
            ours.clip_grad_norm_(0.5)
            torch.nn.utils.clip_grad_norm_(masters, 0.5)
        finite, due = (all(bool(g.isfinite().all()) for g in gradients_of(each)) for each in (ours, theirs))
        agree(finite is due, f"step {step} is {'taken' if finite else 'skipped'} by one rank, but should not be")
        scaler.step(ours)
        their_scaler.step(theirs)
        scaler.update()
        their_scaler.update()
        found, due = scaler.get_scale(), their_scaler.get_scale()
        assert found == due, f"after step {step} the scale is {found:g}, but should be {due:g}"
        for parameter, whole, master in zip(module.parameters(), single.parameters(), masters):
            whole.data.copy_(master)
            off = (parameter - whole).abs().max()
            assert off <= 2e-3 * whole.abs().max(), f"after step {step}: a weight is off by {off:.1e}"
    skipped = their_scaler.skipped
    assert 4 <= skipped <= 8 and (lonely or world_size == 1), f"{skipped} skipped, {lonely} of them by some ranks only"


def fp16_gradients(model: nn.Module, share: Any, scale: float) -> list[torch.Tensor]:
    """Of the scaled loss of one share."""
    gradients = torch.autograd.grad(model(*share) * scale, list(model.parameters()))
    return [gradient.half() for gradient in gradients]


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
            time.sleep(0.2)  # gloo's threads let go of what they have sent a little later
            with_gradients = record.now.total
            with measure.traffic() as sent:
                optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.2)
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
        used = predict.all_reduce(4 * len(list(model.parameters())) + 4, ranks).bytes  # and the overflow
        assert sent.sent_bytes <= 1.1 * (halves + used) + 64 * (len(optimizer.buckets) + 1) * ranks, (
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
