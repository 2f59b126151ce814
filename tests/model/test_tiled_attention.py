"""Tiled attention: exact, with gradients, in memory of the order S · K, without the FLOPs of tiles that are hidden."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from course_kit import measure
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.tiled_attention import TiledAttention, tiled_attention
from tests.predict.refused import refused


def explicit(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp with all scores in memory; with `causal` the queries are the last ones."""
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[-2] - q.shape[-2])
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("causal", [False, True])
def test_a_public_course_s_tests_pass_by_an_adapter_of_two_lines(causal: bool) -> None:
    """Stanford's CS336, assignment 2: output, L as the one saved tensor of shape (batch, queries), gradients."""
    q, k, v, gradient = drawn(*[(4, 128, 64)] * 4, dtype=torch.float32)
    output = TiledAttention.apply(q, k, v, causal)
    due, logsum = explicit(q, k, v, causal)
    (saved,) = [each for each in output.grad_fn.saved_tensors if each.shape == (4, 128)]
    torch.testing.assert_close((output, saved), (due, logsum), rtol=1e-2, atol=1e-2)
    ours, theirs = (torch.autograd.grad(result, (q, k, v), gradient) for result in (output, due))
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries, keys", [(64, 64), (37, 53), (1, 9), (50, 50), (16, 48)])
@pytest.mark.parametrize("rows, columns", [(16, 16), (7, 24), (64, 5), (128, 128)])
def test_any_lengths_and_tiles_give_the_exact_sum(
    causal: bool, queries: int, keys: int, rows: int, columns: int
) -> None:
    q, k, v, gradient = drawn((2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 8), (2, 3, queries, 8))
    ours, due = tiled_attention(q, k, v, causal, rows, columns), explicit(q, k, v, causal)[0]
    torch.testing.assert_close(ours, due, rtol=0, atol=1e-13)
    pairs = zip(torch.autograd.grad(ours, (q, k, v), gradient), torch.autograd.grad(due, (q, k, v), gradient))
    for mine, right in pairs:
        torch.testing.assert_close(mine, right, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rows", [4, 6, 16])
def test_a_query_without_keys_gets_zeros_and_gives_none(rows: int) -> None:
    """Nine queries of five keys: the first four see nothing, alone in a tile or beside others that see some."""
    q, k, v = drawn((2, 9, 16), (2, 5, 16), (2, 5, 16))
    output = tiled_attention(q, k, v, True, rows, 4)
    output.sum().backward()
    assert (output[:, :4] == 0).all() and (output[:, 4:] != 0).all()
    assert q.grad is not None and (q.grad[:, :4] == 0).all()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in (q, k, v))
    torch.testing.assert_close(output[:, 4:], explicit(q[:, 4:], k, v, True)[0])


def test_large_scores_overflow_nothing_even_in_16_bits() -> None:
    q, k, v = drawn(*[(1, 40, 16)] * 3, dtype=torch.float16)
    output = tiled_attention(q * 60, k * 60, v, rows=16, columns=16)
    assert output.dtype == torch.float16 and output.isfinite().all()
    due = explicit((q * 60).double(), (k * 60).double(), v.double(), False)[0]
    torch.testing.assert_close(output.double(), due, rtol=0, atol=4e-3)


def test_sums_are_wide_under_autocast_too() -> None:
    """Else the scores forward would be other ones than backward, and no row of weights would add up to 1."""
    q, k, v, gradient = drawn(*[(2, 90, 16)] * 4, dtype=torch.float32)
    alone = tiled_attention(q, k, v, True, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        under = tiled_attention(q, k, v, True, 32, 32)
    assert torch.equal(under, alone)
    for one, other in zip(*(torch.autograd.grad(each, (q, k, v), gradient, True) for each in (under, alone))):
        assert torch.equal(one, other)
    due = torch.autograd.grad(alone, (q, k, v), gradient)
    with torch.autocast("cpu", torch.bfloat16):  # backward() inside the block, too
        assert all(map(torch.equal, torch.autograd.grad(under, (q, k, v), gradient), due))


def test_shapes_come_out_on_a_device_that_knows_no_autocast() -> None:
    q, k, v = (torch.empty(2, 70, 8, device="meta", requires_grad=True) for _ in range(3))
    output = tiled_attention(q, k, v, causal=True, rows=32, columns=32)
    output.backward(torch.empty_like(output))
    assert output.shape == (2, 70, 8) and q.grad is not None and q.grad.shape == (2, 70, 8)


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    q, k, v = drawn(*[(1, 6, 4)] * 3)
    (first,) = torch.autograd.grad(tiled_attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 8e-2), (torch.float16, 1e-2)])
def test_tensors_may_lie_in_any_way(dtype: torch.dtype, tolerance: float) -> None:
    """Heads side by side, features across, NaN in every second place between, one head for all."""
    q, k, v, gradient = drawn(*[(2, 3, 70, 8)] * 4, dtype=dtype)
    apart = torch.stack([v, torch.full_like(v, torch.nan)], -1)[..., 0]
    laid = q.transpose(1, 2).contiguous().transpose(1, 2), k.mT.contiguous().mT, apart
    across = gradient[:, :1].expand_as(gradient)
    ours = tiled_attention(*laid, causal=True, rows=32, columns=16)
    due = explicit(q.double(), k.double(), v.double(), True)[0]
    torch.testing.assert_close(ours.double(), due, rtol=0, atol=tolerance)
    mine = torch.autograd.grad(ours, (q, k, v), across)
    for one, right in zip(mine, torch.autograd.grad(due, (q, k, v), across.double())):
        torch.testing.assert_close(one.double(), right.double(), rtol=tolerance, atol=tolerance)


def peaks(seq: int, causal: bool = True) -> tuple[int, int]:
    """Bytes at the peak of a forward pass, and of a whole one with its backward pass, beside q, k, v."""
    q, k, v, gradient = drawn(*[(1, 2, seq, 16)] * 4, dtype=torch.float32)
    with measure.memory(inputs=(q, k, v)) as forward, torch.no_grad():
        tiled_attention(q, k, v, causal, 64, 64)
    with measure.memory(inputs=(q, k, v, gradient)) as both:
        torch.autograd.grad(tiled_attention(q, k, v, causal, 64, 64), (q, k, v), gradient)
    return tuple(record.peak.total - record.before.total for record in (forward, both))  # type: ignore[return-value]


def test_bytes_at_the_peak_grow_by_the_token_and_not_by_its_square() -> None:
    """A token more costs its output and one number, K + 1; with the backward pass three gradients and D, 3K + 1."""
    (first, first_both), (second, second_both), (third, third_both) = (peaks(seq) for seq in (512, 1024, 2048))
    head = 2 * 4  # two heads of fp32
    assert (second - first, third - second) == (head * 17 * 512, head * 17 * 1024)
    assert second_both - first_both == head * (17 + 3 * 16 + 2) * 512
    assert third_both - second_both == 2 * (second_both - first_both)


def test_hidden_tiles_are_not_computed() -> None:
    """Of 8 × 8 tiles a causal pass computes 36; the backward pass has 5 products where the forward pass has 2."""
    q, k, v, gradient = drawn(*[(1, 2, 512, 16)] * 4, dtype=torch.float32)
    tile = 2 * 2 * 64 * 64 * 16  # one product, two heads
    for causal, tiles in ((False, 64), (True, 36)):
        with measure.flops() as forward:
            output = tiled_attention(q, k, v, causal, 64, 64)
        with measure.flops() as backward:
            torch.autograd.grad(output, (q, k, v), gradient)
        assert (forward.total, backward.total) == (2 * tiles * tile, 5 * tiles * tile)


def test_it_is_torch_s_attention() -> None:
    q, k, v = drawn(*[(2, 3, 100, 16)] * 3, dtype=torch.float32)
    due = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(tiled_attention(q, k, v, True, 32, 32), due)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_gpt_with_tiled_attention_takes_the_explicit_one_s_step(positions: str) -> None:
    tokens = torch.randint(0, 50, (2, 40), generator=torch.Generator().manual_seed(0))
    models = [
        GPT(GPTConfig(2, 32, 4, 50, 64, positions=positions, attention=attention), dtype=torch.float64)  # type: ignore[arg-type]
        for attention in ("explicit", "tiled")
    ]
    losses = [model(tokens[:, :-1], tokens[:, 1:]) for model in models]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses, rtol=0, atol=1e-12)
    for ours, due in zip(models[1].parameters(), models[0].parameters()):
        torch.testing.assert_close(ours.grad, due.grad, rtol=0, atol=1e-12)


Q, TILED = torch.zeros(2, 4, 8), inspect.unwrap(tiled_attention)
test_mistakes_are_named = refused(
    *(  # a width of 1 would fit every width of the output
        (lambda k=k, v=v: TILED(Q, torch.zeros(*k), torch.zeros(*v)), "all but the number of queries")
        for k, v in (((2, 5, 8), (2, 6, 8)), ((2, 5, 8), (2, 5, 1)), ((2, 5, 8), (2, 5, 4)))
    ),
    *(
        (lambda qkv=qkv: TILED(*qkv), "floating-point numbers, of two dims or more")
        for qkv in ((Q.long(), Q.long(), Q.long()), (Q, Q.long(), Q), (Q[0, 0], Q[0, 0], Q[0, 0]))
    ),
    (lambda: tiled_attention(Q, Q, Q, rows=0), "at least one of each"),
    (lambda: GPTConfig(1, 8, 2, 10, 8, dropout=0.1, attention="tiled"), "no weights to drop"),
)
