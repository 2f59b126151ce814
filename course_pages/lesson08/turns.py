"""Checks of lesson 08's turns: attention by heads, f backward, bytes of a cut stream, softmax, uncut gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_kit import measure, ranks
from course_kit.notebook.your_turn import Function
from course_kit.units import Bytes
from course_lib import predict
from course_lib.model import hardware
from course_lib.model.gpt import GPT
from course_pages.lesson08.runs import SMALL, attention, cut_mlp, gradient_of_x, sequence_parallel


def check_attention(function: Function) -> None:
    """The result of all heads, a fair share of the operations, and one sum: nothing is gathered before it."""

    def on_each_rank(heads: int) -> tuple[float, float, int, int]:
        torch.manual_seed(0)
        given: Any = (*torch.randn(4, 32, 32, dtype=torch.float64), heads)
        x = torch.randn(16, 32, dtype=torch.float64)
        with measure.flops() as whole:
            expected = attention(x, *given)
        with measure.traffic() as sent, measure.flops() as own:
            y = function(x, *given)
        gathers = sent.messages.get("all_gather", 0) - sent.messages.get("reduce_scatter", 0)
        return (y - expected).abs().max().item(), own.total / whole.total, sent.total_bytes, int(gathers)

    for p, heads in ((4, 8), (2, 8)):
        off, share, sent, gathers = map(max, zip(*ranks.run(on_each_rank, heads, world_size=p)))
        case = f"{heads} heads on {p} ranks"
        assert off < 1e-9, f"{case}: the result should be that of all heads, but is off by {off:.2g}"
        assert share == 1 / p, f"{case}: a rank should make its part of all operations, but makes {share:.0%}"
        due = predict.all_reduce(16 * 32 * 8, p).bytes
        assert sent == due, (
            f"{case}: a rank should send what one all-reduce of 16 × 32 float64 does, but sends {sent:d} bytes"
        )
        assert gathers <= 0, (
            f"{case}: the result should be a sum, formed once, but {gathers} gathers were called: which matrix was cut "
            "so that its columns, or those of the mix, had to be put together again?"
        )


def as_operator(backward: Function) -> Function:
    """An autograd function that does nothing forward, and `backward` on the way back."""

    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return backward(grad)

    return Enter.apply


def check_f(function: Function) -> None:
    """The gradient of a single process, on 2 and 4 ranks, and autograd's own tensor as it was."""
    enter = as_operator(function)

    def off() -> tuple[float, float]:
        return gradient_of_x(lambda x, a, b: cut_mlp(x, a, b, enter))

    for p in (2, 4):
        far = max(each[1] for each in ranks.run(off, world_size=p))
        assert far < 1e-12, f"on {p} ranks the gradient of X should be whole, but is still off by {far:.0%}"
    lent = ranks.run(lambda: (function(grad := torch.ones(2)), grad)[1].tolist(), world_size=2)[0]
    assert lent == [1, 1], f"the gradient that was lent should stay as it was, but became {lent}"


def check_bytes(function: Function) -> None:
    """Bytes that the library's block sends, on two numbers of ranks and for two batches."""

    def on_each_rank(batch: int) -> Bytes:
        block = sequence_parallel(GPT(SMALL)).blocks[0]
        x = torch.ones(batch, SMALL.context // dist.get_world_size(), SMALL.width, requires_grad=True)
        with measure.traffic() as sent:
            block(x).sum().backward()
        return Bytes(sum(sent.modelled_bytes[name] for name in ("all_gather", "reduce_scatter")))

    for t, batch in ((2, 4), (4, 4), (4, 2)):
        stream = 4 * batch * SMALL.context * SMALL.width
        due, said = ranks.run(on_each_rank, batch, world_size=t)[0], function(stream, t)
        wrong = f"a stream of {stream} bytes on {t} ranks: {said} bytes are too {'few' if said < due else 'many'}"
        assert abs(said - due) <= 1, wrong


def check_softmax(function: Function) -> None:
    """The softmax of all keys so far, of large scores, far apart and close together, after pieces of unequal size."""
    torch.manual_seed(0)
    values, spread = torch.randn(12, 3, dtype=torch.float64), torch.randn(5, 12, dtype=torch.float64)
    size = 1000 * torch.randn(5, 1, dtype=torch.float64)
    for scores, ends in ((1000 * spread, (4, 8, 12)), (size + spread, (1, 7, 12))):  # far apart, all weight is on one
        mix, log_sum = torch.zeros(5, 3, dtype=torch.float64), torch.full((5,), -torch.inf, dtype=torch.float64)
        for begin, seen in zip((0, *ends), ends):
            mix, log_sum = function(mix, log_sum, scores[:, begin:seen], values[begin:seen])
            off = (mix - scores[:, :seen].softmax(-1) @ values[:seen]).abs().max().item()
            assert off < 1e-9, (
                f"after {seen} of 12 keys the mix should be softmax(scores) @ values, but is off by {off:.2g}"
            )


def check_whole(function: Function) -> None:
    """Sums of uncut gradients, in one message, with shapes and dtypes as they were; cut ones are left alone."""
    shapes = {"norm.weight": (3,), "up.weight": (2, 3), "up.bias": (2,), "down.weight": (3, 2), "down.bias": (3,)}
    cut = {"up.weight": 0, "up.bias": 0, "down.weight": 1}

    def on_each_rank() -> tuple[dict[str, Tensor | None], int]:
        model = nn.ModuleDict({"norm": nn.RMSNorm(3), "up": nn.Linear(3, 2), "down": nn.Linear(2, 3)}).double()
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, 10.0 * number + dist.get_rank())
            parameter.grad.view(-1)[0] += 0.5
        with measure.traffic() as sent:
            function(model, cut)
        return {name: p.grad for name, p in model.named_parameters()}, int(sum(sent.messages.values()))

    for p in (2, 4):
        for rank, (grads, messages) in enumerate(ranks.run(on_each_rank, world_size=p)):
            for number, (name, shape) in enumerate(shapes.items()):
                mine = torch.full(shape, 10.0 * number + rank, dtype=torch.float64)
                mine.view(-1)[0] += 0.5
                total = p * (mine - rank) + sum(range(p))
                found, due = grads[name], mine if name in cut else total
                should = "stay this rank's own, since it is cut" if name in cut else "be the sum over the ranks"
                right = found is not None and found.shape == due.shape and torch.equal(found, due)
                assert right, f"on {p} ranks the gradient of {name} should {should}, but rank {rank}'s is not"
            assert messages == 1, f"all sums should travel in one message, but there were {messages}"


def share_of_products(t: int, width: int, flops_per_s: float, bytes_per_s: float, waited_for: int = 4) -> float:
    """Section 14's formula: products over products and the all-reduces of a layer that are waited for."""
    return 1 / (1 + waited_for / 18 * (t - 1) * flops_per_s / (width * bytes_per_s))


EXERCISES = (
    4 * predict.all_reduce(2 * 2048 * 12_288, world_size=8).bytes.to("MB"),
    share_of_products(8, 8192, 0.4 * hardware.H100_80GB.peak("bf16"), hardware.H100_80GB.link_bytes_per_s),
    (15 + 15 + 16) * Bytes(2 * 2 * 8192 * 128).to("MB"),
)
"""Answers to the exercises: MB for a layer of GPT-3; a share of the time; MB for keys and values on a ring."""
