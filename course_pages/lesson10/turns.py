"""Checks of lesson 10's turns: a rank's part, the second half of a step, a unit that comes and goes, a small buffer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_kit import measure, ranks
from course_kit.notebook.your_turn import Function
from course_lib import predict
from course_lib.collectives import algorithms
from course_lib.collectives.operators import all_gather
from course_lib.model.gpt import GPT
from course_pages.lesson10.ledgers import FUSED, ODD, SMALL, Library, share, wide

EXERCISES = (
    next(n for n in range(1, 1000) if 13e9 * (2 + 14 / n) <= 30e9),
    float(3 * 8 * predict.all_gather(2 * 1_557_611_200, 64).bytes.to("GB")),
)
"""Answers to the first two exercises: ranks, GB."""


def operations_of_a_rank() -> float:
    """Answer to the third: products' operations of a rank of stage 3, over those of a rank that has all weights."""

    def counted(stage: int) -> int:
        model = Library(3, GPT(SMALL)).model if stage else GPT(SMALL)
        with measure.flops() as flops:
            model(*share(0, dist.get_rank())).backward()
        return int(flops.total)

    alone, sharded = (ranks.run(counted, stage, world_size=4)[0] for stage in (0, 3))
    return sharded / alone


def _part(tensor: Tensor) -> Tensor:
    flat, p = tensor.detach().flatten(), dist.get_world_size()
    return nn.functional.pad(flat, (0, -len(flat) % p)).chunk(p)[dist.get_rank()].clone()


def check_part(function: Function) -> None:
    """Lengths with and without padding, on 4 ranks and on 3 (where n % p is not -n % p), shape, order, dtype, bytes."""

    def on_each_rank(sizes: tuple[int, ...]) -> list[tuple[list[float], torch.dtype, int]]:
        whole = [torch.arange(1.0, n + 1, dtype=torch.bfloat16).view(2, -1) for n in sizes]
        parts = [function(each) for each in whole]
        assert all(isinstance(part, Tensor) for part in parts), f"a tensor should come back, but {parts[0]!r} did"
        same = [each.numel() for each in whole] == list(sizes)
        assert same, "the tensor that was given should stay as it was, but has another length now"
        bent = [tuple(part.shape) for part in parts if part.dim() != 1]
        assert not bent, f"a part should be flat, but one has the shape {bent[0]}"
        return [(part.flatten().tolist(), part.dtype, part.untyped_storage().nbytes()) for part in parts]

    for p, sizes in ((4, (10, 8)), (4, (2,)), (3, (10, 6))):
        for n, found in zip(sizes, zip(*ranks.run(on_each_rank, sizes, world_size=p))):
            parts, dtypes, alive = zip(*found)
            lengths, joined, case = [len(part) for part in parts], sum(parts, []), f"{n} elements on {p} ranks"
            assert len(set(lengths)) == 1, f"{case}: parts should be equally long, but have {lengths}"
            assert joined[:n] == list(range(1, n + 1)) and not any(joined[n:]), (
                f"{case}: end to end the parts should be the elements in order and then zeros, but are {joined}"
            )
            assert len(joined) < n + p, f"{case}: {len(joined) - n} zeros are more than even lengths need"
            assert set(dtypes) == {torch.bfloat16}, f"{case}: parts of bf16 should be bf16, but one is {dtypes[0]}"
            assert max(alive) == 2 * lengths[0], (
                f"{case}: a part of {lengths[0]} in bf16 should keep its own bytes alive, but keeps {max(alive)}"
            )


def check_step(function: Function) -> None:
    """Masters, weights, widths and bytes, for wide and for 16-bit weights, over three steps."""
    for dtype in (torch.float64, torch.bfloat16):
        ranks.run(_three_steps, function, dtype, world_size=4)
    sent, psi = ranks.run(_gathered, function, world_size=2)[0], predict.parameters(SMALL)
    assert sent, "parts should travel by all_gather, but none does"
    assert sent == psi, (
        f"each of two ranks owns half of the 16-bit weights, and sends {2 * sent / psi:.3g} bytes for each of its own"
    )


def _cut(config: Any, dtype: torch.dtype) -> SimpleNamespace:
    """The attributes of the page's `Zero1`."""
    model = GPT(config, dtype=dtype)
    masters = [nn.Parameter(wide(_part(weight))) for weight in model.parameters()]
    return SimpleNamespace(
        model=model, weights=list(model.parameters()), masters=masters, optimizer=FUSED(masters, lr=1e-2)
    )


def _three_steps(function: Function, dtype: torch.dtype) -> None:
    zero, due = _cut(ODD, dtype), _cut(ODD, dtype)
    seen = [weight.detach() for weight in zero.weights]  # views, which follow writes in place
    for step in range(3):
        zero.model(*share(step, dist.get_rank())).backward()
        for weight, master, other in zip(zero.weights, zero.masters, due.masters):
            assert weight.grad is not None
            master.grad = wide(_part(algorithms.all_reduce(weight.grad, "mean")))
            other.grad, weight.grad = master.grad.clone(), None
        due.optimizer.step()
        with torch.no_grad():
            function(zero)
        for weight, view, master, other in zip(zero.weights, seen, zero.masters, due.masters):
            case = f"{dtype} weights of shape {tuple(weight.shape)}, step {step}".removeprefix("torch.")
            new = all_gather(other.detach().to(dtype), 0)[: weight.numel()].view_as(weight)
            assert torch.equal(master, other), f"{case}: a master is not what the optimizer's step makes of it"
            assert torch.equal(weight, new), f"{case}: a rank's weights are not everybody's new masters"
            assert torch.equal(view, new), f"{case}: weights should change in place, but stand in new memory"


def _gathered(function: Function) -> int:
    zero = _cut(SMALL, torch.bfloat16)
    for master in zero.masters:
        master.grad = torch.zeros_like(master)
    with measure.traffic() as sent, torch.no_grad():
        function(zero)
    return int(sum(sent.modelled_bytes.get(name, 0) for name in ("all_gather", "send")))  # lesson 06's own uses send


def check_unit(function: Function) -> None:
    """The result, the parts' gradients and the input's, of a block whose weights do not come out even."""

    def on_each_rank() -> tuple[float, float, float]:
        torch.manual_seed(dist.get_rank())
        block, x = GPT(ODD, dtype=torch.float64).blocks[0], torch.randn(2, 5, 6, dtype=torch.float64)
        same = x.clone().requires_grad_()
        x.requires_grad_()
        parts = [_part(weight).requires_grad_() for weight in block.parameters()]
        due, y = block(same), function(GPT(ODD, device="meta").blocks[0], parts, x)
        (due.square().mean() + y.square().mean()).backward()
        gradients = [weight.grad for weight in block.parameters() if weight.grad is not None]
        means = [_part(algorithms.all_reduce(gradient, "mean")) for gradient in gradients]
        return _apart(y, due), max(map(_apart, [part.grad for part in parts], means)), _apart(x.grad, same.grad)

    result, parts, given = (max(each) for each in zip(*ranks.run(on_each_rank, world_size=4)))
    assert result < 1e-12, f"the result should be the whole block's, but is off by {result:.2g}"
    assert parts < 1e-12, f"each part should get its part of the mean gradient, but is off by {parts:.2g}"
    assert given < 1e-12, f"x should get the whole block's gradient, but is off by {given:.2g}"


def _apart(a: Tensor | None, b: Tensor | None) -> float:
    return float("inf") if a is None or b is None else (a - b).abs().max().item()


def check_average(function: Function) -> None:
    """The mean as fp32 has it, on all ranks, formed in the buffer; bytes that go through fp32 once, little memory."""

    def on_each_rank(n: int, size: int) -> tuple[bool, bool, int, int]:
        numbers = torch.Generator().manual_seed(n)  # 8 bits each: fp32 adds them exactly, and bf16 does not
        every = torch.randint(1, 256, (dist.get_world_size(), n), generator=numbers).bfloat16()
        tensor, buffer = every[dist.get_rank()].clone(), torch.full((size,), torch.nan)
        with measure.traffic() as sent, measure.memory(inputs=[tensor, buffer]) as record:
            function(buffer, tensor)
        due = every.float().mean(0).bfloat16()
        new = record.peak.total - record.before.total
        used = not buffer.isnan().all()
        return torch.equal(tensor, due), used, int(sent.modelled_bytes.get("all_reduce", 0)), int(new)

    for p, n, size in ((3, 40_000, 1000), (4, 10, 4), (3, 18, 4), (3, 12, 4), (4, 3, 8)):
        right, used, sent, new = zip(*ranks.run(on_each_rank, n, size, world_size=p))
        case, due = f"{n:,} elements through a buffer of {size:,} NaN on {p} ranks", predict.all_reduce(4 * n, p).bytes
        assert all(right), f"{case}: the tensor should hold the fp32 mean, rounded once, but does not"
        assert abs(sent[0] - due) <= 0.1 * due, (
            f"{case}: a rank sends {sent[0]:,} bytes by all_reduce, so not each number once"
        )
        assert new[0] <= 12 * size, f"{case}: {new[0]:,} new bytes are alive at once, more than three such buffers"
        assert all(used), f"{case}: the sum should be formed in the buffer, but that is NaN as before"
