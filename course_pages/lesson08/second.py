"""Runs of lesson 08's second sitting: a split model without sums, a message beside a product, shared keys, a ring."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import parallelize_module

from course_kit import measure, ranks
from course_kit.units import Bytes, Flops
from course_lib.collectives.operators import all_gather, all_reduce, f_bar, own_part
from course_lib.model import text
from course_lib.model.gpt import GPT, Attention
from course_lib.parallel import context, tensor, tensor_gpt
from course_lib.parallel.tensor_gpt import ParallelGPT
from course_lib.train.step import train_step
from course_pages.lesson08.runs import SMALL, Split, attention, batch, sequence_parallel
from course_pages.shared.kept import kept_by


def without_sums(gpt: GPT) -> ParallelGPT:
    """The sequence-parallel GPT whose norms and output biases learn from this rank's tokens only."""
    with (
        mock.patch.object(tensor, "add_up_gradients", lambda *_: None),
        mock.patch.object(tensor_gpt, "add_up_gradients", lambda *_: None),
    ):
        return sequence_parallel(gpt)


def what_it_forgets(train_steps: int = 20) -> tuple[float, dict[str, float], float]:
    """Errors of `without_sums`, in float64: the loss; gradients, by kind; the norms' spread over ranks in the end."""
    single = GPT(SMALL, dtype=torch.float64)
    ours = without_sums(single)
    losses = [model(*batch()) for model in (single, ours)]
    for loss in losses:
        loss.backward()
    right, cut, off = dict(single.named_parameters()), tensor_gpt.shardings(ours), dict[str, float]()
    for name, parameter in ours.named_parameters():
        if name not in cut and parameter.grad is not None:
            kind = "norms" if "norm" in name else "biases behind sums"
            due = right[name].grad
            assert due is not None
            off[kind] = max(off.get(kind, 0.0), ((parameter.grad - due).norm() / due.norm()).item())
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    for step in range(train_steps):
        train_step(ours, optimizer, batch(step))
    norms = torch.cat([p.detach().flatten() for name, p in ours.named_parameters() if "norm" in name])
    theirs = all_gather(norms[None], 0)
    return (losses[0] - losses[1]).abs().item(), off, (theirs - theirs[0]).abs().max().item()


def record_backward(function: Callable[..., Any], size: int = 768) -> Any:
    """The backward pass of a column cut over time, the quickest of four."""
    x, weight, y_grad = (torch.ones(size, size) for _ in range(3))
    records = []
    for _ in range(4):
        dist.barrier()
        with measure.timeline() as record:
            function(x, weight, y_grad, record.span)
        records.append(record)
    return min(records, key=lambda record: max(event.end_s for event in record.events))


def beside_pytorch(plan: dict[str, Any], separate: Callable[[Attention], nn.Module]) -> tuple[float, dict[str, Bytes]]:
    """Our cut block beside `parallelize_module`'s in three steps; `separate` gives its attention the plan's layers.

    Returns:
        The most by which outputs or gradients of the input differ; bytes of a step, by part and owner.
    """
    ours, theirs = (GPT(SMALL, dtype=torch.float64).blocks[0] for _ in range(2))
    theirs.attention = separate(theirs.attention)  # type: ignore[arg-type]
    tensor.cut_block(ours)  # type: ignore[arg-type]
    parallelize_module(theirs, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    largest, sent, inputs = 0.0, {}, torch.linspace(-1, 1, 4096, dtype=torch.float64).view(2, 32, 64)
    for _ in range(3):
        for part in ("attention", "mlp"):
            found = []
            for name, block in (("ours", ours), ("DTensor", theirs)):
                x, layers = inputs.clone().requires_grad_(), block.get_submodule(part)
                with measure.traffic() as counted:
                    y = layers(x)
                    y.square().sum().backward()
                torch.optim.SGD(layers.parameters(), lr=0.01).step()
                layers.zero_grad()
                found += [(y.detach(), x.grad)]
                sent[f"{part}, {name}"] = counted.sent_bytes
            largest = max(largest, *((a - b).abs().max().item() for a, b in zip(*found)))
    return largest, sent


def shared(matrix: Tensor, heads: int, pairs: int) -> Tensor:
    """A matrix of keys or values, its columns repeated for each head: grouped-query as multi-head attention."""
    return matrix.unflatten(1, (pairs, -1)).repeat_interleave(heads // pairs, 1).flatten(1)


def grouped(pairs_of: Callable[[int, int, int, int], list[int]]) -> tuple[list[int], float, float, float]:
    """Attention of 8 heads with 2 pairs of keys and values, a part of the heads on each rank.

    Returns:
        The pairs that this rank holds; the error of the result; the error of the gradient of its keys' matrix, alone
        and after a sum over the ranks that hold the same pairs.
    """
    heads, pairs, rank, t = 8, 2, dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, q, out = (torch.randn(rows, 32, dtype=torch.float64) for rows in (16, 32, 32))
    k, v = (torch.randn(32, 8, dtype=torch.float64).requires_grad_() for _ in range(2))
    expected = attention(x, q, shared(k, heads, pairs), shared(v, heads, pairs), out, heads)
    expected.square().sum().backward()
    assert k.grad is not None
    held = pairs_of(rank, t, heads, pairs)

    def mine(whole: Tensor) -> Tensor:
        return whole.detach().unflatten(1, (pairs, -1))[:, held].flatten(1)

    own_k, own_v = (mine(each).requires_grad_() for each in (k, v))
    for_heads = [shared(each, heads // t, len(held)) for each in (own_k, own_v)]
    y = f_bar(attention(x, own_part(q, 1), for_heads[0], for_heads[1], own_part(out, 0), heads // t))
    y.square().sum().backward()
    assert own_k.grad is not None
    holders = [[r for r in range(t) if pairs_of(r, t, heads, pairs) == each] for each in ([0], [1])]
    groups: list[Any] = [dist.new_group(each) for each in holders]
    added, due = all_reduce(own_k.grad, groups[held[0]]), mine(k.grad)
    alone, together = (float((found - due).norm() / due.norm()) for found in (own_k.grad, added))
    return held, float((y - expected).detach().abs().max()), alone, together


def equal_pairs(make_layer: Callable[[], nn.Module]) -> int:
    """Pairs of heads that lose the same weights, of 8 heads on 4 ranks that are seeded alike."""

    def masks() -> list[Any]:
        torch.manual_seed(0)
        mine = make_layer()(torch.ones(1, 2, 8, 8))  # batch, this rank's 2 heads, queries, keys
        return [(head != 0).int().tolist() for head in all_gather(mine, dim=1)[0]]

    found = ranks.run(masks, world_size=4)[0]
    return sum(a == b for i, a in enumerate(found) for b in found[:i])


def sent_by_gloo(operation: str) -> Bytes:
    """Bytes that the backend sends for "reduce_scatter" or "all_reduce" of a tensor as large as the stream."""
    terms, mine = list(torch.ones(4, 32, 64)), torch.empty(32, 64)
    with measure.traffic() as sent:
        if operation == "reduce_scatter":
            dist.reduce_scatter(mine, terms)
        else:
            dist.all_reduce(torch.cat(terms))
    return sent.sent_bytes


def handed_on(leaving: Tensor) -> Tensor:
    """The tensor of the rank before, while this rank's tensor goes to the next one."""
    rank, p, coming = dist.get_rank(), dist.get_world_size(), torch.empty_like(leaving)
    ends = [(dist.isend, leaving, (rank + 1) % p), (dist.irecv, coming, (rank - 1) % p)]
    for work in dist.batch_isend_irecv([dist.P2POp(*end) for end in ends]):
        work.wait()
    return coming


def around_the_ring(ring: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[Bytes, Bytes, list[float]]:
    """Rings over 256 tokens of 64 features: bytes sent by `ring`, and by the library's in zig-zag order backward.

    The list has the errors against full attention, of both results and of the library's gradients of q, k and v.
    """
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 256, 64, dtype=torch.float64).requires_grad_() for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected.square().sum().backward()
    with measure.traffic() as sent:
        out = ring(*(own_part(each.detach()[0, 0], 0) for each in (q, k, v)))
    own_q, own_k, own_v = (context.own_tokens(each.detach(), 2).requires_grad_() for each in (q, k, v))
    zigzag = context.ring_attention(own_q, own_k, own_v)
    with measure.traffic() as back:
        zigzag.square().sum().backward()

    pairs: list[Any] = [(out, own_part(expected[0, 0], 0)), (zigzag, context.own_tokens(expected, 2))]
    pairs += [(a.grad, context.own_tokens(b.grad, 2)) for a, b in ((own_q, q), (own_k, k), (own_v, v))]  # type: ignore[arg-type]
    return sent.sent_bytes, back.sent_bytes, [float((a - b).detach().abs().max()) for a, b in pairs]


def ring_operations(order: context.Order) -> Flops:
    """Operations of this rank in a ring over 64 tokens of 64 features a rank."""
    mine = torch.ones(1, 1, 64, 64)
    with measure.flops() as counted:
        context.ring_attention(mine, mine, mine, order)
    return Flops(counted.total)


LONG = dataclasses.replace(SMALL, context=256, attention="fused")


def long_batch(step: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one sequence of 256 bytes."""
    return text.stories(seed=0).batch(seed=0, step=step, rank=0, batch_size=1, context=256)


def own_weights(model: nn.Module) -> dict[str, Tensor]:
    """Weights by name, of a model that every rank holds whole."""
    return dict(model.named_parameters())


def kept_by_a_step(split: Split) -> Bytes:
    """Bytes that autograd keeps of a whole forward pass over the long sequence."""
    return Bytes(sum(kept_by(split(GPT(LONG)), *long_batch())))


def context_parallel_here() -> str:
    """The outcome of PyTorch's own `context_parallel` on this backend."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    q, k, v = (torch.randn(1, 4, 64, 16) for _ in range(3))
    try:
        with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
            return str(F.scaled_dot_product_attention(q, k, v, is_causal=True).shape)
    except NotImplementedError as problem:
        return f"not on this backend: {problem}"
