"""ZeRO's stages 1 and 2 on real ranks: the paper's bytes, fp16's skipped steps, mistakes. Steps: `test_parity`."""

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_kit import measure
from course_lib import predict
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.train.gradients import clip_gradients
from course_lib.train.gradients import gradients_of as all_gradients
from course_lib.train.precision import LossScaler
from course_lib.train.recompute import recompute
from tests.mutants.parallel import zero as wrong
from tests.parallel.judging import accepted, agree, off, on_ranks, refused
from tests.parallel.parity import RULES, parity
from tests.parallel.problems import TINY, gpt
from tests.parallel.sides import Zero

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
    single, module = (GPT(TINY, seed=seed, dtype=torch.float16) for seed in (0, rank))
    batch, kind, settings = gpt(0)[1], *RULES["sgd"]
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
        finite, due = (all(bool(g.isfinite().all()) for g in all_gradients(each)) for each in (ours, theirs))
        agree(finite is due, f"step {step} is {'taken' if finite else 'skipped'} by one rank, but should not be")
        scaler.step(ours)
        their_scaler.step(theirs)
        scaler.update()
        their_scaler.update()
        found, due = scaler.get_scale(), their_scaler.get_scale()
        agree(found == due, f"after step {step} the scale is {found:g}, but should be {due:g}")
        problems = []
        for (name, parameter), whole, master in zip(module.named_parameters(), single.parameters(), masters):
            whole.data.copy_(master)
            problems += off(f"weight of {name}", parameter, whole, 2e-3 * float(whole.abs().max()))
        agree(problems, f"after step {step}: ")
    skipped = their_scaler.skipped
    assert 4 <= skipped <= 8 and (lonely or world_size == 1), f"{skipped} skipped, {lonely} of them by some ranks only"


def fp16_gradients(model: nn.Module, share: Any, scale: float) -> list[torch.Tensor]:
    """Of the scaled loss of one share."""
    gradients = torch.autograd.grad(model(*share) * scale, list(model.parameters()))
    return [gradient.half() for gradient in gradients]


@on_ranks(2, 4, nightly=(1,), diagnose=False)
def test_fp16_with_a_loss_scaler_skips_the_single_devices_steps():
    """Under the course's scaler and PyTorch's; with clipping, and accumulation."""
    check_fp16(ZeroOptimizer, 1)
    theirs = functools.partial(torch.amp.GradScaler, "cpu")  # type: ignore[attr-defined]
    check_fp16(ZeroOptimizer, 2, theirs, passes=2)


CONFIG = GPTConfig(layers=2, width=32, heads=2, vocab_size=40, context=8)


def check_bytes(zero: Callable[..., Any], stage: int) -> None:
    """What a rank holds between backward pass and step, and between steps, and what it sends: the paper's bytes.

    Weights in bf16; counted by the tracker of storages and by the sockets. All ranks must call.
    """
    n = dist.get_world_size()
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
    slack = 64 * len(list(model.parameters())) + 16 * n * len(optimizer.buckets)  # Adam's step counts, padding
    states, gradients = 12 * psi / n, 2 * psi / (n if stage == 2 else 1)
    for what, held, due in (
        ("between steps", between, before + states),
        ("with gradients", with_gradients, before + states + gradients),
    ):
        agree(abs(held - due) <= slack, f"{what} a rank holds {held} bytes, but should hold {due:.0f}")
    if n > 1:
        halves = predict.all_gather(2 * psi, n).bytes * (2 if stage == 1 else 1)
        used = predict.all_reduce(4 * len(list(model.parameters())) + 4, n).bytes  # and the overflow
        most = 1.1 * (halves + used) + 64 * (len(optimizer.buckets) + 1) * n
        agree(bool(sent.sent_bytes <= most), f"a step sends {sent.sent_bytes} bytes, where {halves} do")


@pytest.mark.parametrize("stage", [1, 2])
@on_ranks(2, 4, nightly=(1,), diagnose=False)
def test_a_rank_holds_and_sends_the_bytes_of_the_paper(stage):
    check_bytes(ZeroOptimizer, stage)


@on_ranks(2, backend="cpu:gloo", diagnose=False)
def test_these_are_the_bytes_where_each_kind_of_device_has_a_backend():
    check_bytes(ZeroOptimizer, 1)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@on_ranks(3, nightly=(2,), diagnose=False)
def test_masters_and_gradients_can_be_gathered(stage, dtype):
    """Masters and mean gradients are whole on every rank, in the bytes of the formula."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, whole = (nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3), nn.Linear(2, 2)).to(dtype) for _ in range(2))
    model[1].weight.requires_grad_(False)
    optimizer = ZeroOptimizer(model.parameters(), torch.optim.SGD, stage=stage, bucket_bytes=64, lr=2.0**-12)
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


def test_known_wrong_ones_are_refused():
    cases = {wrap: ("in step 0", parity, Zero, wrap, gpt, "sgd", {}) for wrap in wrong.WRONG_WEIGHTS}
    clips = {"max_norms": (0.05,) * 3}
    cases |= {wrap: ("in step 0: the norm is off", parity, Zero, wrap, gpt, "sgd", clips) for wrap in wrong.WRONG_NORMS}
    cases |= {wrap: ("holds|sends", check_bytes, wrap, stage, {}) for wrap, stage in wrong.WRONG_BYTES.items()}
    cases |= {wrap: ("step 1 is taken by one rank", check_fp16, wrap, 1, {}) for wrap in wrong.WRONG_SCALED}
    assert accepted(4, cases) == {}


@on_ranks(2)
def test_a_meter_may_be_opened_while_gradients_wait():
    """It reads no gradient, so the pieces' list lets it pass."""
    model = nn.Linear(4, 4)
    optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()  # its gradients stay until zero_grad, as any optimizer's do
    with measure.memory(model, optimizer.optimizer) as record:
        held = int(record.now.optimizer)
    # two moments of 10 elements, and a step count for each piece: the bias and 6 of the matrix, or 10 of the matrix
    assert held == 2 * 4 * 10 + (2, 1)[dist.get_rank()] * 4


def small(stage, layers=None):
    layers = layers or nn.Linear(4, 4)
    return layers, ZeroOptimizer(layers.parameters(), torch.optim.SGD, stage=stage, bucket_bytes=64, lr=0.1)


def scales_too_early(scaler, stage, call):
    model, optimizer = small(stage)
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    getattr(scaler, call)(optimizer)


def clips(clip):
    model, optimizer = small(1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.reduce_gradients()
    clip(optimizer)


def a_layer_in_two_segments():
    layer, head = layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    _, optimizer = small(2, layers)  # kept: its hooks live as long as it does
    head(recompute(layer, recompute(layer, torch.ones(2, 4, requires_grad=True)))).sum().backward()
    optimizer.step()


def a_pass_after_the_norm(stage):
    layer, optimizer = small(stage)
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.clip_grad_norm_(1e9)
    layer(torch.ones(2, 4)).sum().backward()


def assigned(stage):
    """A step on gradients that `torch.autograd.grad` has returned has the usual step's weights."""
    found = []
    for assigns in (False, True):
        torch.manual_seed(0)
        layer, optimizer = small(stage)
        loss = layer(torch.ones(2, 4) * (1 + dist.get_rank())).square().sum()
        if assigns:
            for parameter, gradient in zip(layer.parameters(), torch.autograd.grad(loss, list(layer.parameters()))):
                parameter.grad = gradient
        else:
            loss.backward()
        optimizer.step()
        found.append([parameter.detach().clone() for parameter in layer.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found))


def torch_clips(optimizer):
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)


NOT_WHOLE = r"Checkpoints\(folder, model, optimizer\)"
TOO_EARLY = "not reduced yet; call reduce_gradients"
ONE_SHARD = "one rank's shard.*clip with clip_grad_norm_"
MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: small(3), "stage=3"),
    (lambda: small(1, nn.Linear(2, 2).requires_grad_(False)), "no parameter to train"),
    (lambda: scales_too_early(LossScaler(), 1, "step"), f"{TOO_EARLY}.. on all ranks, then the scaler"),
    (lambda: scales_too_early(torch.amp.GradScaler("cpu"), 2, "unscale_"), TOO_EARLY),  # type: ignore[attr-defined]
    (lambda: clips(torch_clips), ONE_SHARD),
    (lambda: clips(lambda optimizer: clip_gradients(optimizer, 1.0)), ONE_SHARD),
    (a_layer_in_two_segments, "a weight has a second gradient in one backward pass"),
    (lambda: a_pass_after_the_norm(1), "the gradients are reduced already"),
    (lambda: a_pass_after_the_norm(2), "the gradients are reduced already"),
    (lambda: assigned(2), "a gradient was assigned, and stage 2 takes those of backward"),
    (lambda: small(1)[1].state_dict(), NOT_WHOLE),
    (lambda: small(1)[1].add_param_group({"params": []}), NOT_WHOLE),
    (lambda: small(1)[1].gathered_masters(nn.Linear(4, 4)), r"parameters of shapes \[\(4, 4\), \(4,\)\]"),
]


def test_mistakes_are_told():
    """A shard does not tell its norm; what would be lost or is not whole is not handed out."""
    assert refused(2, MISTAKES) == []


@on_ranks(2)
def test_assigned_gradients_count_in_stage_1():
    assigned(1)
