"""Ring attention and a GPT cut along its sequence: values, gradients, bytes, who works when. Steps: `test_parity`."""

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_kit import measure
from course_lib import predict
from course_lib.model.gpt import GPT, Attention, GPTConfig
from course_lib.parallel.context import (
    ContextParallelGPT,
    RingAttention,
    own_tokens,
    pieces,
    ring_attention,
    work,
)
from course_lib.predict import Setup
from course_lib.train.recompute import recompute_only
from tests.mutants.parallel import context as wrong
from tests.parallel.judging import accepted, agree, off, on_ranks, refused
from tests.parallel.tensor_checks import saved_by

SMALL = GPTConfig(layers=2, width=16, heads=2, vocab_size=11, context=16)


def check_attention(attend, order):
    """Values and all three gradients of a rank's tokens equal those of full attention (float64)."""
    torch.manual_seed(0)
    whole = [torch.randn(2, 3, 16, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    upstream = torch.randn(2, 3, 16, 4, dtype=torch.float64)
    with torch.device("meta"):
        full = Attention(dataclasses.replace(SMALL, width=12, heads=3))
    expected = full.explicit(*whole)
    expected.backward(upstream)
    mine = [own_tokens(tensor.detach(), 2, order).requires_grad_() for tensor in whole]
    n_bytes = mine[1].nbytes
    with measure.traffic() as forward:
        out = attend(*mine, order)
    with measure.traffic() as backward:
        out.backward(own_tokens(upstream, 2, order))
    problems = off("output", out, own_tokens(expected, 2, order), 1e-13)
    for name, part, tensor in zip(("queries", "keys", "values"), mine, whole):
        assert tensor.grad is not None
        problems += off(f"gradient of the {name}", part.grad, own_tokens(tensor.grad, 2, order), 1e-13)
    agree(problems, "")
    c = dist.get_world_size()
    due = [2 * n_bytes * (c - 1), 2 * n_bytes * (2 * c - 1)] if c > 1 else [0, 0]
    sent = [forward.total_bytes, backward.total_bytes]
    agree(sent == due, f"sends {sent} bytes forward and backward, where {due} are due")


@pytest.mark.parametrize("order", ["plain", "zigzag"])
@on_ranks(2, 4, nightly=(1,))
def test_values_gradients_and_traffic_of_the_ring(order):
    check_attention(ring_attention, order)


@pytest.mark.parametrize("order", ["plain", "zigzag"])
@pytest.mark.parametrize("autocast", [False, True])
@on_ranks(4, diagnose=False)
def test_in_16_bits_only_what_is_kept_or_sent_is_rounded(order, autocast):
    """Output and gradients in bf16 lie within roundings of full attention in float64 on the same 16-bit arguments."""
    torch.manual_seed(0)
    whole = [torch.randn(2, 3, 256, 8, dtype=torch.bfloat16) for _ in range(3)]
    q, k, v = exact = [tensor.double().requires_grad_() for tensor in whole]
    mine = [own_tokens(tensor, 2, order).requires_grad_() for tensor in whole]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    upstream = torch.randn_like(whole[0])
    expected.backward(upstream.double())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = ring_attention(mine[0], mine[1], mine[2], order)
        out.backward(own_tokens(upstream, 2, order))
    one, c = torch.finfo(torch.bfloat16).eps / 2, dist.get_world_size()
    assert out.dtype == torch.bfloat16
    distance = (out - own_tokens(expected, 2, order)).abs()
    assert (distance <= 1.01 * one * own_tokens(expected, 2, order).abs() + 1e-6).all(), "rounded more than once"
    for name, part, tensor in zip(("queries", "keys", "values"), mine, exact):
        assert part.grad is not None and tensor.grad is not None
        due = own_tokens(tensor.grad, 2, order)
        distance = (part.grad - due).norm() / due.norm()
        limit = (1 if name == "queries" else c + 1) * one
        assert distance < limit, f"the gradient of the {name} is off by {distance:.1e}"


@on_ranks(2)
def test_a_ring_can_be_recomputed():
    """Loss and gradients of a ring that runs again in the backward pass are those of one that keeps its tensors."""
    tokens = torch.randint(0, 11, (2, 16), generator=torch.Generator().manual_seed(0))
    kept, again = (ContextParallelGPT(GPT(SMALL, dtype=torch.float64)) for _ in range(2))
    recompute_only(again, RingAttention)
    losses = [model(tokens, tokens) for model in (kept, again)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    for (name, p), q in zip(kept.named_parameters(), again.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad), name


@on_ranks(2, 4)
def test_a_rank_keeps_and_sends_its_share():
    """What a rank keeps and sends in a step of 2 sequences of 32 tokens equals the formulas."""
    config = dataclasses.replace(SMALL, context=32)
    setup = Setup(config, 2, context=dist.get_world_size())
    model = ContextParallelGPT(GPT(config))
    tokens = torch.zeros(2, 32, dtype=torch.int64)
    with measure.traffic() as sent:
        loss, kept = saved_by(model, tokens, tokens)
        loss.backward()
    assert kept == predict.rank_activations(setup), f"keeps {kept} bytes, not {predict.rank_activations(setup)}"
    due = predict.rank_traffic(setup)["context"].modelled_bytes
    assert sent.modelled_bytes.keys() == due.keys()
    assert all(abs(sent.modelled_bytes[name] - due[name]) <= 64 for name in due), f"sends {sent}, not {due}"
    assert sent.observed_bytes is None or sent.observed_bytes >= 0.99 * sum(due.values())


def test_who_works_when():
    """Four ranks, half squares on the diagonal. In plain order the first rank waits, and the last sets the pace."""
    plain, zigzag = work("plain", 4), work("zigzag", 4)
    assert plain == [[0.5] * 4, [0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]
    assert zigzag == [[0.5] * 4] * 4
    assert sum(map(max, plain)) == 3.5 and sum(map(max, zigzag)) == 2
    assert [pieces("zigzag", 4, rank) for rank in range(4)] == [[0, 7], [1, 6], [2, 5], [3, 4]]


@pytest.mark.parametrize("order", ["plain", "zigzag"])
@on_ranks(4)
def test_the_imbalance_is_what_the_ranks_really_compute(order):
    """Products only: in plain order a piece against itself is computed whole and half of it thrown away."""
    q, k, v = (torch.ones(1, 1, 32, 4) for _ in range(3))
    with measure.flops() as counted:
        ring_attention(q, k, v, order)
    flops: list[Any] = [None] * 4
    dist.all_gather_object(flops, counted.total)
    whole = {0.5: 1.0} if order == "plain" else {}
    due = [sum(whole.get(row[rank], row[rank]) for row in work(order, 4)) for rank in range(4)]
    assert [count / flops[0] for count in flops] == [load / due[0] for load in due]


def refuse(part, how=None):
    gpt: Any = recompute_only(GPT(SMALL), part, *([how] if how else []))
    ContextParallelGPT(gpt)


MISTAKES = [
    (
        lambda: own_tokens(torch.zeros(1, 12), 1),
        "^12 tokens do not split into 8 equal pieces .zigzag, 4 ranks.: pad them$",
    ),
    (lambda: own_tokens(torch.zeros(1, 16), 1, "spiral"), "must be 'plain' or 'zigzag'"),  # type: ignore[arg-type]
    (lambda: ContextParallelGPT(GPT(dataclasses.replace(SMALL, dropout=0.1))), "take dropout=0"),
    (lambda: refuse(Attention), r"then recompute_only\(it, RingAttention\)"),
    (lambda: refuse(Attention, "attend"), r"then recompute_only\(it, RingAttention\)"),
]


def test_what_cannot_be_is_refused():
    assert refused(4, MISTAKES) == []


def test_known_wrong_rings_are_refused():
    cases = {mutant: (says, check_attention, mutant, "zigzag", {}) for mutant, says in wrong.WRONG.items()}
    assert accepted(4, cases) == {}
