"""The cast policy: which operation runs in which precision, beside autocast, and in the second run of recompute."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.model.experts import BiasedRouter, ExpertConfig, ExpertMLP, Router
from course_lib.model.gpt import GPT, Block
from course_lib.train.optim import AdamW
from course_lib.train.precision import CONTRACTIONS, WIDE, CastPolicy
from course_lib.train.recompute import recompute_only
from tests.train.saved import SavedBytes, gradients, same
from tests.train.test_precision import SMALL, batch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_class_of_operation_gets_its_precision(dtype):
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with CastPolicy(dtype):
        narrow = [x @ w, torch.matmul(x, w), F.linear(x, w), x.mm(w), torch.einsum("ij,jk->ik", x, w)]
        narrow += [nn.Linear(4, 4)(x)]
        half = narrow[0]
        wide = [half.softmax(-1), F.softmax(half, -1), F.layer_norm(half, (4,)), half.sum(), half.exp(), half**2]
        wide += [nn.LayerNorm(4)(half), F.cross_entropy(half, torch.arange(4)), half.square().mean()]
        follow = [half + half, half.relu(), F.gelu(half), half.view(2, 8)]
        widest = [half + x, torch.cat([half, x])]
        alone = [x.double() @ w.double(), torch.ones(2, dtype=torch.int64).sum()]
    assert {t.dtype for t in narrow + follow} == {dtype}
    assert {t.dtype for t in wide + widest} == {torch.float32}
    assert [t.dtype for t in alone] == [torch.float64, torch.int64]
    assert not CONTRACTIONS & WIDE


def test_what_is_written_into_a_given_tensor_arrives_there():
    x, product, total = torch.randn(4, 4), torch.zeros(4, 4), torch.zeros(4, dtype=torch.bfloat16)
    with CastPolicy():
        torch.matmul(x, x, out=product)
        torch.sum(x.bfloat16(), 0, out=total)
    assert torch.equal(product, x @ x) and torch.equal(total, x.bfloat16().sum(0))


def test_a_policy_does_to_a_linear_layer_what_autocast_does():
    layer, x = nn.Linear(16, 8), torch.randn(4, 16)
    found = []
    for context in (CastPolicy(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            result = layer(x)
        result.float().square().sum().backward()
        found.append([result.detach(), *gradients(layer)])
    assert same(*found)
    assert [t.dtype for t in found[0]] == [torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_gpt_under_the_policy_computes_what_autocast_computes(dtype):
    model = GPT(SMALL).cuda()
    inputs, targets = (t.cuda() for t in batch())
    losses = []
    for context in (CastPolicy(dtype), torch.autocast("cuda", dtype)):
        with context:
            losses.append(model(inputs, targets))
    assert torch.equal(*losses)


def softmax_of_large_scores(dtype: torch.dtype) -> Tensor:
    scores = torch.tensor([[300.0, 301.0]])
    return (scores.to(dtype) @ torch.eye(2, dtype=dtype) * 300).exp()


def test_an_fp16_exponential_overflows_and_a_wide_softmax_does_not():
    assert softmax_of_large_scores(torch.float16).isinf().any()
    with CastPolicy(torch.float16):
        scores = torch.tensor([[300.0, 301.0]]) @ torch.eye(2)
        assert scores.dtype == torch.float16
        assert torch.allclose(scores.softmax(-1), torch.tensor([[300.0, 301.0]]).softmax(-1))


def test_a_gpt_trains_under_the_policy_and_saves_fewer_bytes():
    final, held = {}, {}
    for name in ("fp32", "mixed"):
        model = GPT(SMALL)
        optimizer = AdamW(model.parameters(), lr=3e-3)
        for _ in range(60):
            optimizer.zero_grad()
            with SavedBytes(model.parameters()) as saved:
                if name == "mixed":
                    with CastPolicy():
                        loss = model(*batch())
                else:
                    loss = model(*batch())
                held[name] = saved.now
            loss.backward()
            optimizer.step()
        final[name] = loss.item()
        assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert final["fp32"] < 1.0 and abs(final["mixed"] - final["fp32"]) < 0.1
    assert held["mixed"] < held["fp32"]


def test_a_recomputed_block_runs_under_the_policy_again():
    found = []
    for prepare in (lambda model: model, lambda model: recompute_only(model, Block)):
        model = prepare(GPT(SMALL))
        with CastPolicy():
            loss = model(*batch())
        loss.backward()
        found.append([loss.detach(), *gradients(model)])
    assert same(*found)


@pytest.mark.parametrize("router", [Router, BiasedRouter])
@pytest.mark.parametrize("context", [CastPolicy, lambda: torch.autocast("cpu", torch.bfloat16)], ids=["ours", "torch"])
def test_a_router_chooses_in_32_bits_under_a_policy(context, router):
    layer, x = ExpertMLP(ExpertConfig(16, 8, 4, top_k=2), router=router), torch.randn(64, 16)
    due = layer.router(x)
    with context():
        y = layer(x)
    y.float().sum().backward()
    assert torch.equal(layer.routing.choice.logits_TE, due.logits_TE)
    assert torch.equal(layer.routing.choice.experts_Tk, due.experts_Tk)
    gradient = layer.router.weight.grad
    assert gradient is not None and gradient.isfinite().all() and gradient.any()


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match="dtype=torch.float32 given"):
        CastPolicy(torch.float32)
