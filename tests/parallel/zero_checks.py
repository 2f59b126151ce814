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
from course_lib.train.muon import Muon
from course_lib.train.optim import Adafactor
from course_lib.train.precision import LossScaler
from tests.parallel import checks
from tests.parallel.checks import Joined, agree, assert_same

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, float]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}),
    "adam": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


def muon(groups: list[dict[str, Any]], **settings: float) -> Muon:
    """Muon for matrices, AdamW for the group without decay, as `groups_of` makes them."""
    return Muon([group | {"orthogonal": "weight_decay" not in group} for group in groups], **settings)


OF_WHOLE_TENSORS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "muon": (muon, {"lr": 0.01, "weight_decay": 0.1}),
    "adafactor": (Adafactor, {"lr": 0.02, "eps": (1e-8, 1e-3)}),  # its own eps would divide rounding by rounding
}
"""Rules that a slice of a tensor cannot follow."""


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
    kind, settings = (OPTIMIZERS | OF_WHOLE_TENSORS)[optimizer]
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


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "CosineAnnealingLR": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4),
    "OneCycleLR": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6),
}
"""The last one changes the momentum, too."""


def check_schedule(zero: Callable[..., Any], stage: int, schedule: str) -> None:
    """Weights after every step are a single device's, when torch's schedule, or for "by hand" the loop between backward
    pass and step, changes the settings. All ranks must call."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    single, batch = checks.gpt(seed=0)
    oracle, (module, _) = Joined(single, world_size), checks.gpt(seed=rank)
    ours = zero(groups_of(module), torch.optim.SGD, stage=stage, bucket_bytes=256, lr=0.05, momentum=0.9)
    theirs = torch.optim.SGD(groups_of(single), lr=0.05, momentum=0.9)
    both = [SCHEDULES[schedule](optimizer) for optimizer in (ours, theirs)] if schedule in SCHEDULES else []
    for step in range(5):
        inputs, targets = batch(step)
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
        oracle(inputs, targets).backward()
        module(inputs.chunk(world_size)[rank], targets.chunk(world_size)[rank]).backward()
        for optimizer in (ours, theirs):
            for group in optimizer.param_groups if not both else ():
                group["lr"] = 0.05 / (1 + step)
            optimizer.step()
        for each in both:
            each.step()
        assert_same(module, single, f"after step {step}", gradients=False)


def check_gathered(zero: Callable[..., Any], stage: int, dtype: torch.dtype) -> None:
    """Masters and mean gradients are whole on every rank, in the bytes of the formula. All ranks must call."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, whole = (nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3), nn.Linear(2, 2)).to(dtype) for _ in range(2))
    model[1].weight.requires_grad_(False)
    optimizer = zero(model.parameters(), torch.optim.SGD, stage=stage, bucket_bytes=64, lr=2.0**-12)
    whole.load_state_dict(model.state_dict())
    x = torch.randint(-2, 3, (world_size, 5), generator=torch.Generator().manual_seed(3)).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    due = {name: p.detach().to(wide, copy=True) for name, p in model.named_parameters() if p.requires_grad}
    for row in x:
        whole[1](whole[0](row)).sum().backward()
    model[1](model[0](x[rank])).sum().backward()
    gradients = optimizer.gathered_gradients(model)
    assert gradients.keys() == {"0.weight", "0.bias", "1.bias"}, f"gradients of {sorted(gradients)}"
    for name, gradient in gradients.items():
        (total,) = (p.grad for n, p in whole.named_parameters() if n == name)
        assert total is not None
        mean = total.to(wide) / world_size
        assert gradient.dtype == wide and torch.allclose(gradient, mean, rtol=2 * torch.finfo(dtype).eps), name
    optimizer.step()
    with measure.traffic() as sent:
        masters = optimizer.gathered_masters(model)
    assert masters.keys() == due.keys()
    for name, master in masters.items():
        moved = due[name] - 2.0**-12 * gradients.get(name, torch.zeros(()))
        assert torch.allclose(master, moved, rtol=4 * torch.finfo(wide).eps), f"{name} is not what the step has made"
        assert torch.equal(master.to(dtype), model.get_parameter(name))
    bytes_sent = sum(
        predict.all_gather(b.part * world_size * wide.itemsize, world_size).bytes for b in optimizer.buckets
    )
    assert sent.total_bytes == bytes_sent, f"sent {sent.total_bytes}, where {bytes_sent} do"
    if dtype == torch.bfloat16:
        assert any(not torch.equal(m, m.bfloat16().float()) for m in masters.values()), "rounded masters"
