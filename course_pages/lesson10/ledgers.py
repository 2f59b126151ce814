"""Runs of lesson 10's page: a small model, the ledger of one rank, and differences from one process."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_kit import measure, ranks
from course_kit.units import Bytes
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.checkpoint import Checkpoints
from course_lib.parallel.tensor_gpt import ParallelGPT
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.parallel.zero3 import Zero3
from course_lib.parallel.zero_r import CheckpointMemory, average_through, recompute_part
from course_lib.train.recompute import recompute
from course_lib.train.step import train_step

SMALL = GPTConfig(layers=2, width=128, heads=4, vocab_size=256, context=32, norm="rmsnorm", bias=False)
DEEP = GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=32, norm="rmsnorm", bias=False)
ODD = GPTConfig(layers=1, width=6, heads=2, vocab_size=256, context=32, norm="rmsnorm", bias=False)
"""A GPT with vectors of 6 elements, which do not divide by four ranks."""
FUSED = functools.partial(torch.optim.AdamW, fused=True)
"""AdamW in one pass over each tensor, so that it needs no memory for intermediate results."""


def share(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one rank's two sequences."""
    return text.stories(seed=0).batch(seed=0, step=step, rank=rank, batch_size=2, context=32)


def wide(values: Tensor) -> Tensor:
    """An fp32 copy of a bf16 tensor; of any other, a copy in its own dtype."""
    return values.float() if values.dtype == torch.bfloat16 else values.clone()


def formula(psi: int, weights: float, gradients: float, states: float) -> dict[str, Bytes]:
    """Bytes of a rank at the end of the backward pass, from bytes for each of `psi` parameters."""
    each = {"weights": weights, "gradients": gradients, "masters, moments": states}
    return {name: Bytes(round(psi * n)) for name, n in (each | {"a rank": sum(each.values())}).items()}


class Ledger(NamedTuple):
    """Bytes of one rank: held after the second backward pass, sent in the second step, and at the peak of `step`."""

    held: dict[str, Bytes]
    sent: Bytes
    peak: Bytes


def ledger(kind: Callable[..., Any]) -> Ledger:
    """Take two steps of the small model in bf16 with `kind(model)`. All ranks must call."""
    with measure.memory() as record:
        zero = kind(GPT(SMALL, dtype=torch.bfloat16))
        for step in range(2):
            with measure.traffic() as sent:
                zero.model(*share(step, dist.get_rank())).backward()
                time.sleep(0.1)  # the backend's threads free sent tensors a moment later
                alive, begins = record.now, len(record.timeline)
                zero.step()
                dist.barrier()
    peak = Bytes(record.timeline.bytes[begins - 1 :].sum(axis=1).max())
    rest = alive.total - alive.parameters - alive.optimizer
    held = {"weights": alive.parameters, "gradients": rest, "masters, moments": alive.optimizer, "a rank": alive.total}
    return Ledger(held, sent.sent_bytes, peak)


def off(kind: Callable[..., Any], rule: Callable[..., Any] = FUSED) -> list[float]:
    """Largest difference of a weight from one process's, after each of three steps on the joined batch, in float64."""
    single, off = GPT(ODD, dtype=torch.float64), []
    ours, theirs = kind(GPT(ODD, dtype=torch.float64), rule), rule(single.parameters(), lr=1e-2)
    for step in range(3):
        shares = [share(step, rank) for rank in range(dist.get_world_size())]
        inputs, targets = (torch.cat(each) for each in zip(*shares))
        train_step(single, theirs, (inputs, targets))
        ours.model(*share(step, dist.get_rank())).backward()
        ours.step()
        off.append(max((a - b).abs().max().item() for a, b in zip(ours.weights, single.parameters())))
    return off


def is_like_one_process(kind: Callable[..., Any]) -> None:
    """Print whether four ranks' weights are one process's after each of three steps, with SGD and with AdamW."""
    for name, rule in {"SGD": torch.optim.SGD, "AdamW": FUSED}.items():
        most = max(max(each) for each in ranks.run(off, kind, rule, world_size=4))
        print(f"{name}: one process's weights after each of three steps: {most < 1e-12}")


class Library:
    """`ZeroOptimizer` for stages 1 and 2, and `Zero3` with a plain optimizer, behind one face."""

    def __init__(self, stage: int, model: nn.Module, rule: Callable[..., Any] = FUSED) -> None:
        self.stage = stage
        if stage == 3:
            self.model = Zero3(model, bucket_bytes=2**18)
            self.optimizer = rule(self.model.parameters(), lr=1e-2)
        else:
            self.model = model
            self.optimizer = ZeroOptimizer(model.parameters(), rule, stage=stage, bucket_bytes=2**18, lr=1e-2)  # type: ignore[arg-type]

    def step(self) -> None:
        """Step on the mean gradients, and forget them."""
        if isinstance(self.model, Zero3):
            self.model.synchronize()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def weights(self) -> list[Tensor]:
        """All weights, whole."""
        if isinstance(self.model, Zero3):
            return list(self.model.gathered_state_dict().values())
        return list(self.model.parameters())


def tower(run: Callable[..., Tensor], my_part: Callable[[Tensor], Tensor]) -> tuple[Bytes, Bytes, Bytes]:
    """Four blocks, each by `run(shape, parts, x)`, on one token, so that activations weigh nothing.

    Returns:
        Bytes at the forward pass's fullest moment and after it; bytes sent in both passes.
    """
    torch.manual_seed(dist.get_rank())
    whole, shapes = (GPT(DEEP, dtype=torch.bfloat16, device=device).blocks for device in ("cpu", "meta"))
    parts = [[my_part(weight.detach()).requires_grad_() for weight in block.parameters()] for block in whole]
    x = torch.ones(1, 1, 128, dtype=torch.bfloat16)
    with measure.traffic() as sent:
        with measure.memory(inputs=sum(parts, [])) as record:
            for shape, mine in zip(shapes, parts):
                x = run(shape, mine, x)
                time.sleep(0.1)  # gloo's threads free sent tensors a little later
            after = record.now.total
        x.float().mean().backward()
        dist.barrier()
    return record.peak.total, after, sent.sent_bytes


def sent_in_a_step(stage: int, passes: int) -> Bytes:
    """Bytes that this rank sends in a step of so many backward passes, in fp32."""
    zero = Library(stage, GPT(SMALL))
    for _ in range(2):
        with measure.traffic() as sent:
            for number in range(passes):
                (zero.model(*share(number, dist.get_rank())) / passes).backward()
            zero.step()
            dist.barrier()
    return sent.sent_bytes


def beside(kind: Callable[..., Any]) -> tuple[bool, str, Bytes, Bytes]:
    """Whether the weights are one process's, the dtype of the parameters, bytes of moments, bytes sent in a step."""
    wrong, zero = max(off(kind, torch.optim.AdamW)), kind(GPT(SMALL))
    for step in range(2):
        dist.barrier()
        with measure.traffic() as sent:
            zero.model(*share(step, dist.get_rank())).backward()
            zero.step()
            dist.barrier()
    inner = getattr(zero.optimizer, "optim", getattr(zero.optimizer, "optimizer", zero.optimizer))
    moments = [getattr(m, "_local_tensor", m) for each in inner.state.values() for m in each.values()]
    kept = str(next(iter(zero.model.parameters())).dtype).removeprefix("torch.")
    return wrong < 1e-12, kept, Bytes(sum(m.nbytes for m in moments if m.dim())), sent.sent_bytes


def sent_to_whom(wrap: Callable[[nn.Module], Any]) -> Any:
    """Account of this rank's bytes in a second step of stage 3, with peers."""
    model = wrap(GPT(SMALL))
    for _ in range(2):
        with measure.traffic() as sent:
            model(*share(0, dist.get_rank())).backward()
            model.synchronize()
        model.zero_grad()
    return sent


def checkpointed(parts: bool, memory: CheckpointMemory | None = None) -> tuple[Bytes, Bytes]:
    """Four blocks over the tensor ranks: bytes kept between the passes for recompute, and sent in both."""
    blocks, x = ParallelGPT(GPT(DEEP)).blocks, torch.ones(4, 32, 128, requires_grad=True)
    known = [x] if memory is None else [x, memory.elements]
    with measure.memory(blocks, inputs=known) as record, measure.traffic() as sent:
        before, out = record.now.total, 1 * x
        for block in blocks:
            out = recompute_part(block, out, memory=memory) if parts else recompute(block, out)
        time.sleep(0.2)  # the backend's threads free sent tensors a moment later
        held = record.now.total - before - out.nbytes
        out.sum().backward()
    return Bytes(held), sent.sent_bytes


def in_one_piece() -> Bytes:
    """New memory that a forward pass takes for checkpoints when a piece for all of them is there."""
    return checkpointed(True, CheckpointMemory(4 * 4 * 32 * 128 // 4))[0]


def through_a_buffer(layers: int, size: int | None) -> tuple[Bytes, Bytes]:
    """Peak of new bytes while a model's gradients go through an fp32 buffer of `size` elements (None: all); 4Ψ."""
    shape = GPTConfig(layers, 128, 4, vocab_size=256, context=32, norm="rmsnorm", bias=False)
    gradients = [weight.detach() for weight in GPT(shape, dtype=torch.bfloat16).parameters()]
    elements = sum(map(torch.numel, gradients))
    with measure.memory(inputs=gradients) as record:
        average_through(torch.empty(size or elements), gradients)
    return record.peak.total - record.before.total, Bytes(4 * elements)


class Resumed(NamedTuple):
    """The first step of a run, the weights at its end, and the most bytes that this rank held while it saved."""

    start: int
    weights: list[Tensor]
    peak: Bytes


def go_on(folder: str | Path, until: int) -> Resumed:
    """Train with stage 3 from the folder's newest checkpoint on, with a batch that does not depend on the ranks."""
    zero = Library(3, GPT(SMALL, dtype=torch.float64))
    checkpoints = Checkpoints(folder, zero.model, zero.optimizer)
    start = checkpoints.resume()["step"]
    for step in range(start, until):
        joined = [torch.cat(each) for each in zip(*(share(step, rank) for rank in range(4)))]
        zero.model(*(each.chunk(dist.get_world_size())[dist.get_rank()] for each in joined)).backward()
        zero.step()
    with measure.memory(zero.model, zero.optimizer) as record:
        checkpoints.save(until)
    return Resumed(start, [weight.detach() for weight in zero.weights], record.peak.total)
