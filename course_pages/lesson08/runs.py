"""Runs of lesson 08: an MLP cut in four ways, a split model beside a single process, a block's activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_kit import measure
from course_kit.units import Bytes, Count
from course_lib import predict
from course_lib.collectives import algorithms as collectives
from course_lib.collectives.operators import all_gather, all_reduce, f_bar, own_part
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.layout import Layout, contract, steps
from course_lib.parallel.tensor_gpt import ParallelGPT, whole_state_dict
from course_lib.train.step import train_step
from course_pages.shared.kept import kept_by

SMALL = GPTConfig(layers=2, width=64, heads=8, vocab_size=256, context=32)
STREAM = Bytes(4 * 4 * 32 * 64)
"""Bytes of the stream of `batch`, in float32: 4 sequences of 32 tokens, width 64."""
Split = Callable[[GPT], Any]
"""A function that makes this rank's part of a GPT."""


def batch(step: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a step, the same on all ranks: 4 sequences of 32 bytes."""
    return text.stories(seed=0).batch(seed=0, step=step, rank=0, batch_size=4, context=32)


def sequence_parallel(gpt: GPT) -> ParallelGPT:
    """The GPT on all ranks, its stream cut along the sequence."""
    return ParallelGPT(gpt, None, sequence_parallel=True)


def factors(first: str, second: str) -> tuple[Layout, Layout, Layout, Layout]:
    """Layouts of X and A, and of the hidden layer and B, where A is cut by `first` and B by `second`."""
    x = Layout("token width", {} if first == "columns" else {"width": "tensor"})
    a = Layout("width hidden", {"hidden" if first == "columns" else "width": "tensor"})
    needed = Layout("token hidden", {} if second == "columns" else {"hidden": "tensor"})
    b = Layout("hidden width", {"width" if second == "columns" else "hidden": "tensor"})
    return x, a, needed, b


def layouts(first: str, second: str) -> tuple[Layout, Layout, Layout]:
    """Layouts of the hidden layer, as it is computed and as B needs it, and of the result."""
    x, a, needed, b = factors(first, second)
    return contract(x, a), needed, contract(needed, b)


def price(first: str, second: str) -> Bytes:
    """Bytes that each of 4 ranks sends for the MLP of `mlp_bytes`: the layouts name the messages."""
    computed, needed, result = layouts(first, second)
    moved = [(step, 4 * 64 * 512) for step in steps(computed, needed)]
    moved += [(step, 4 * 64 * 128) for step in steps(result, Layout("token width"))]
    return Bytes(sum(getattr(predict, step.operation)(n_bytes, 4).bytes for step, n_bytes in moved))


def mlp(x: Tensor, a: Tensor, b: Tensor, first: str, second: str) -> Tensor:
    """The whole Y on every rank, with A and B cut by "columns" or by "rows"."""
    hidden = x @ own_part(a, 1) if first == "columns" else own_part(x, 1) @ own_part(a, 0)
    if (first, second) == ("columns", "columns"):
        hidden = all_gather(hidden, 1)
    elif (first, second) == ("rows", "columns"):
        hidden = all_reduce(hidden)
    elif (first, second) == ("rows", "rows"):  # lesson 06's own: gloo's runs an all-reduce
        summand = hidden.T.contiguous()
        hidden = collectives.reduce_scatter(summand).T
    y = F.gelu(hidden) @ own_part(b, 1 if second == "columns" else 0)
    return all_gather(y, 1) if second == "columns" else all_reduce(y)


def mlp_bytes(first: str, second: str) -> Bytes:
    """Bytes that this rank sends for an MLP of 64 tokens, 128 features and 512 hidden ones; its result is checked."""
    torch.manual_seed(0)
    x, a, b = torch.randn(64, 128), torch.randn(128, 512), torch.randn(512, 128)
    with measure.traffic() as sent:
        y = mlp(x, a, b, first, second)
    torch.testing.assert_close(y, F.gelu(x @ a) @ b, rtol=1e-3, atol=1e-2)
    return sent.sent_bytes


def attention(x: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, heads: int) -> Tensor:
    """Causal attention on one device: x [tokens, width] → [tokens, width]."""
    q, k, v = ((x @ matrix).unflatten(-1, (heads, -1)).transpose(0, 1) for matrix in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1) @ out


def cut_mlp(x: Tensor, a: Tensor, b: Tensor, enter: Callable[[Tensor], Tensor]) -> Tensor:
    """Y of an MLP cut by columns, then rows; `enter` stands in front of it."""
    return f_bar(F.gelu(enter(x) @ own_part(a, 1)) @ own_part(b, 0))


def gradient_of_x(function: Callable[..., Tensor], along: int | None = None) -> tuple[float, float]:
    """The distance of `function(x, a, b)` from one process: of Y and of the gradient of X, as shares of their norms.

    Args:
        function: computes Y on all ranks.
        along: the dim along which X and Y are cut; None if every rank has all of them.
    """
    torch.manual_seed(0)
    x, a, b = (torch.randn(*shape, dtype=torch.float64) for shape in ((8, 16), (16, 64), (64, 16)))
    whole = x.clone().requires_grad_()
    expected = F.gelu(whole @ a) @ b
    expected.square().sum().backward()
    assert whole.grad is not None
    mine = (lambda each: each) if along is None else (lambda each: own_part(each.detach(), along))
    x = mine(x).clone().requires_grad_()
    y = function(x, a, b)
    y.square().sum().backward()
    pairs = ((y, mine(expected)), (torch.zeros_like(x) if x.grad is None else x.grad, mine(whole.grad)))
    return tuple(((found - due).norm() / due.norm()).item() for found, due in pairs)  # type: ignore[return-value]


def apart(
    split: Split, config: GPTConfig = SMALL, batch: Callable[[int], Any] = batch,
    joined: Callable[[Any], dict[str, Tensor]] = whole_state_dict,
    after_backward: Callable[[Any], None] = lambda _: None,
) -> float:  # fmt: skip
    """The largest difference of any weight from a single process, over three steps of SGD in float64."""
    single, largest = GPT(config, dtype=torch.float64), 0.0
    ours = split(single)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (single, ours)]
    for step in range(3):
        torch.manual_seed(step)
        train_step(single, optimizers[0], batch(step))
        torch.manual_seed(step)
        optimizers[1].zero_grad()
        ours(*batch(step)).backward()
        after_backward(ours)
        optimizers[1].step()
        whole = joined(ours)
        largest = max(largest, *((whole[name] - p).abs().max().item() for name, p in single.named_parameters()))
    return largest


def bill() -> tuple[Count, Count, Bytes]:
    """Parameters that this rank holds, all-reduces of a step, and bytes sent in it."""
    model = ParallelGPT(GPT(SMALL))
    with measure.traffic() as sent:
        model(*batch()).backward()
    return Count(sum(p.numel() for p in model.parameters())), Count(sent.messages["all_reduce"]), sent.sent_bytes


def kept_by_a_block(split: Split, parts: int = 1) -> Bytes:
    """Bytes kept of a block's forward pass; the stream that comes in has 1/parts of the tokens."""
    return Bytes(sum(kept_by(split(GPT(SMALL)).blocks[0], torch.ones(4, 32 // parts, 64, requires_grad=True))))
