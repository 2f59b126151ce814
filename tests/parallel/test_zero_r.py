"""ZeRO-R on real ranks: as recompute without it, and what it saves and sends."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_kit import measure
from course_kit.units import Bytes
from course_lib import predict
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.tensor_gpt import ParallelGPT
from course_lib.parallel.zero_r import CheckpointMemory, average_through, recompute_part
from course_lib.train.recompute import recompute
from tests.mutants.parallel import zero_r as wrong
from tests.parallel.judging import accepted, agree, off, on_ranks, refused

CONFIG = GPTConfig(layers=3, width=24, heads=12, vocab_size=11, context=8, norm="rmsnorm", bias=False)
SHAPE = (1, 7, 24)
STREAM_BYTES = 8 * 7 * 24


def blocks(seed: int = 0) -> Any:
    """Cut over all ranks."""
    return ParallelGPT(GPT(CONFIG, seed=seed, dtype=torch.float64)).blocks


def run(layers: Any, keep: Callable[..., Tensor]) -> tuple[Tensor, list[Tensor]]:
    """A forward and a backward pass: what comes out, and all gradients."""
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    out = x
    for block in layers:
        out = keep(block, out)
    out.square().sum().backward()
    gradients = [p.grad for p in layers.parameters()]
    assert x.grad is not None
    for parameter in layers.parameters():
        parameter.grad = None
    return out.detach(), [x.grad, *gradients]  # type: ignore[list-item]


def odd(x: Tensor) -> Tensor:
    """Without weights, of a size that no number of ranks but one divides."""
    return (x * x.sum()).sin()


def check_values(keep: Callable[..., Tensor]) -> None:
    """Bit for bit those of `recompute`, for blocks on all ranks, and for a stream that does not divide."""
    layers = blocks()
    memory = CheckpointMemory(3 * 7 * 24, torch.float64)
    for step in range(2):
        out, gradients = run(layers, recompute)
        for kept in (keep, lambda fn, x: keep(fn, x, None, memory)):
            memory.clear()
            found, theirs = run(layers, kept)
            agree(torch.equal(out, found), f"step {step}: another value comes out")
            same = all(torch.equal(a, b) for a, b in zip(gradients, theirs, strict=True))
            agree(same, f"step {step}: another gradient comes out")
        for parameter, gradient in zip(layers.parameters(), gradients[1:]):
            parameter.data -= 0.1 * gradient
    x = torch.linspace(-1, 1, 13).double().requires_grad_()
    wanted = torch.autograd.grad(odd(x).sum(), x)[0]
    keep(odd, x.view(13, 1)).sum().backward()
    assert x.grad is not None
    agree(torch.equal(x.grad, wanted), "another gradient comes out of 13 elements")


def check_bytes(keep: Callable[..., Tensor]) -> None:
    """A rank holds 1/t of each block's input between the passes, and sends (t-1)/t of it in the backward pass.

    The first input is there anyway: with copies, it is no memory more.
    """
    ranks, layers, held, sent = dist.get_world_size(), blocks(), {}, {}
    for name, kept in {"copies": recompute, "parts": keep}.items():
        run(layers, kept)
        x = torch.ones(SHAPE, dtype=torch.float64, requires_grad=True)
        with measure.memory(layers, inputs=x) as record, measure.traffic() as traffic:
            before = record.now.total
            out = x
            for block in layers:
                out = kept(block, out)
            time.sleep(0.2)  # gloo's threads let go of what they have sent a little later
            held[name] = record.now.total - before
            out.sum().backward()
        sent[name] = traffic.modelled_bytes
        del out
    saved = (CONFIG.layers - 1) * STREAM_BYTES - CONFIG.layers * STREAM_BYTES / ranks
    came = held["copies"] - held["parts"]
    agree(abs(came - saved) < 64 * CONFIG.layers, f"holds {came} bytes less, where {saved:.0f} are due")
    gathers = CONFIG.layers * predict.all_gather(STREAM_BYTES, ranks).bytes
    more = sum(sent["parts"].values(), Bytes(0)) - sum(sent["copies"].values(), Bytes(0))
    agree(abs(more - gathers) <= 64 * CONFIG.layers, f"sends {more} bytes more, where {gathers} are due")


def check_memory(keep: Callable[..., Tensor]) -> None:
    """With a memory, no checkpoint takes memory of its own: between the passes nothing new is held but the result."""
    layers, ranks = blocks(), dist.get_world_size()
    x = torch.ones(SHAPE, dtype=torch.float64, requires_grad=True)
    with measure.memory(layers, inputs=x) as record:
        memory = CheckpointMemory(CONFIG.layers * -(-7 * 24 // ranks), torch.float64)
        out, before = x, record.now.total
        for block in layers:
            out = keep(block, out, None, memory)
        time.sleep(0.2)
        held = record.now.total - before
    agree(held <= STREAM_BYTES, f"{held} bytes of new memory, where {STREAM_BYTES} are due")


SIZES = (1, 3, 30, 5, 64, 2)


def check_average(average: Callable[..., None], places: int) -> None:
    """Each tensor has the mean of the ranks', at a peak of no more than the buffer."""
    ranks = dist.get_world_size()
    per_rank = [
        [torch.randn(size, generator=torch.Generator().manual_seed(100 * rank + size)) for size in SIZES]
        for rank in range(ranks)
    ]
    means = [torch.stack(each).mean(0) for each in zip(*per_rank)]
    mine = [tensor.clone() for tensor in per_rank[dist.get_rank()]]
    with measure.memory(inputs=mine) as record, measure.traffic() as traffic:
        before = record.now.total
        average(torch.empty(places), mine)
    for size, ours, due in zip(SIZES, mine, means):
        agree(off(f"tensor of {size}", ours, due, 1e-6), "")
    peak, messages = record.peak.total - before, -(-sum(SIZES) // places)
    agree(peak <= 4 * places, f"{peak} bytes at the peak, in a buffer of {4 * places}")
    due = predict.all_reduce(4 * sum(SIZES), ranks).bytes
    sent = sum(traffic.modelled_bytes.values(), Bytes(0))
    agree(abs(sent - due) <= 8 * ranks * messages, f"sends {sent} bytes, where {due} are due")


@on_ranks(2, 4, nightly=(1, 3), diagnose=False)
def test_values_are_those_of_recompute_and_bytes_those_of_the_paper():
    """P_a, M_D and C_B, the last through buffers of one element up to more than all."""
    check_values(recompute_part)
    check_bytes(recompute_part)
    check_memory(recompute_part)
    for places in (1, 16, 105, 400):
        check_average(average_through, places)


def test_known_wrong_ones_are_refused():
    cases: dict[Any, Any] = {
        mutant: ("another gradient comes out", check_values, mutant, {}) for mutant in wrong.WRONG_VALUES
    }
    cases |= {mutant: ("bytes less, where", check_bytes, mutant, {}) for mutant in wrong.WRONG_BYTES}
    cases |= {mutant: (says, check_average, mutant, 16, {}) for mutant, says in wrong.WRONG_AVERAGES.items()}
    cases[wrong.takes_new_memory] = ("bytes of new memory", check_memory, wrong.takes_new_memory, {})
    assert accepted(2, cases) == {}


def too_much(then):
    """Of a memory that one checkpoint fills."""
    memory, x = CheckpointMemory(4), torch.ones(4, requires_grad=True)
    then(memory, x, recompute_part(odd, x, None, memory))


MISTAKES = [
    (
        lambda: too_much(lambda memory, x, kept: recompute_part(odd, x, None, memory)),
        "^a checkpoint needs 4 elements, of 4 are 0 free",
    ),
    (
        lambda: too_much(lambda memory, x, kept: (memory.clear(), kept.sum().backward())),
        "was cleared before the backward pass",
    ),
    (lambda: average_through(torch.empty(0), [torch.ones(4)]), "without an element"),
]


def test_mistakes_are_told():
    assert refused(1, MISTAKES) == []
