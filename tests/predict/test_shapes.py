"""Shapes that are no GPT of ours, cut in every way: against modules that exist, other people's counts, and by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes
from course_lib import predict
from course_lib.model import zoo
from course_lib.model.experts import ExpertConfig
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.zoo import DEEPSEEK_V3, MIXTRAL_8X7B, Architecture, ExpertModel, GroupedAttention, LatentAttention
from course_lib.parallel.mesh import Mesh
from course_lib.predict import Setup
from course_lib.predict.flops import forward_flops
from course_lib.predict.tensors import tally
from course_lib.train.recompute import RecomputedLayers
from tests.parallel.tensor_checks import saved_by
from tests.predict.refused import refused

from .foreign import Decoder

SMALL = GPTConfig(layers=2, width=16, heads=4, vocab_size=40, context=32)
LLAMA = Architecture(2, 32, 4, 2, 48, 40, 64, gated=True, positions="rotary", tied=False)
MIXTRAL = ExpertModel(
    "a small Mixtral", layers=2, expert_layers=2, width=32, experts=4, top_k=2, expert_hidden=24, gated=True,
    dense_hidden=24, attention=GroupedAttention(4, 2, 8), vocab_size=40, lookup=40,
    source="here", context=64,
)  # fmt: skip
DEEPSEEK = replace(
    MIXTRAL, name="a small DeepSeek", layers=3, dense_hidden=48, shared=1, router_bias=True,
    attention=LatentAttention(4, query_rank=12, kv_rank=10, plain=6, turned=2, value=8),
)  # fmt: skip
SHAPES = {
    "Llama": LLAMA,
    "all heads of its own, tied": replace(LLAMA, kv_heads=4, tied=True),
    "one head": replace(LLAMA, heads=1, kv_heads=1),
    "not gated": replace(LLAMA, gated=False),
    "Mixtral": MIXTRAL,
    "DeepSeek": DEEPSEEK,
    "values narrower than queries": replace(DEEPSEEK, attention=LatentAttention(4, 12, 10, plain=6, turned=4, value=6)),
    "values wider than queries": replace(DEEPSEEK, attention=LatentAttention(4, 12, 10, plain=4, turned=2, value=9)),
    "one expert layer in two": replace(MIXTRAL, expert_layers=1),
}
shapes = pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)


def batch(rows: int, seq: int = 16) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 40, (2, rows, seq), generator=torch.Generator().manual_seed(0))
    return tokens[0].clone(), tokens[1].clone()


# ---- against modules that exist ------------------------------------------------------------------------------------


@shapes
def test_parameters_and_states_are_those_of_a_module(config: Any) -> None:
    model = Decoder(config)
    real = {name: p.numel() for name, p in model.named_parameters()}
    listed = predict.rank_tensors(Setup(config), 0, "parameters")
    assert {each.name: each.elements for each in listed} == real and len(listed) == len(real)
    assert predict.parameters(config) == sum(real.values())
    optimizer = torch.optim.AdamW(model.parameters())
    model(*batch(2)).backward()
    for p in model.parameters():  # an expert's bias in the router gets one, too
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    optimizer.step()
    weights = Bytes(sum(p.nbytes for p in model.parameters()))
    state = Bytes(sum(value.nbytes for each in optimizer.state.values() for value in each.values()))
    assert predict.model_states(Setup(config, 2, 16, optimizer="adamw")) == MemoryAccount(weights, weights, state)


@shapes
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_activations_are_what_autograd_keeps(config: Any, precision: Any, dtype: torch.dtype, rows: int) -> None:
    _, kept = saved_by(Decoder(config).to(dtype), *batch(rows))
    setup = Setup(config, rows, 16, precision=precision)
    assert kept == predict.rank_activations(setup) == predict.activations(setup) - 2 * 8 * rows * 16


@shapes
@pytest.mark.parametrize("every", [1, 2])
def test_recompute_keeps_the_inputs_of_segments(config: Any, every: int) -> None:
    model = Decoder(config)
    model.blocks = RecomputedLayers(model.blocks, every)
    _, kept = saved_by(model, *batch(3))
    assert kept == predict.rank_activations(Setup(config, 3, 16, recompute="full", recompute_every=every))


def test_a_gpt_without_positions_is_one() -> None:
    config = replace(SMALL, positions="none")
    assert GPT(config).position_embedding is None
    assert predict.parameters(SMALL) - predict.parameters(config) == 32 * 16
    _, kept = saved_by(GPT(config), *batch(3))
    assert kept == predict.rank_activations(Setup(config, 3, 16))
    rotary = predict.rank_activations(Setup(replace(SMALL, positions="rotary"), 3, 16))
    assert rotary - kept == 2 * 4 * 2 * 16 * 4  # two layers' angles: cos and sin of two pairs, for q and again for k


# ---- cut over ranks ------------------------------------------------------------------------------------------------

CUTS: list[tuple[Any, dict[str, int]]] = [
    (SMALL, {"tensor": 4, "pipeline": 2, "data": 3}),
    (LLAMA, {"tensor": 2, "pipeline": 2, "data": 3, "context": 2}),
    (MIXTRAL, {"tensor": 2, "pipeline": 2, "expert": 4, "data": 3, "context": 2}),
    (DEEPSEEK, {"tensor": 2, "pipeline": 3, "expert": 2, "data": 2, "context": 2}),
]


@pytest.mark.parametrize(("config", "ranks"), CUTS, ids=["GPT", "Llama", "Mixtral", "DeepSeek"])
def test_all_ranks_together_hold_every_tensor(config: Any, ranks: dict[str, int]) -> None:
    """Parts times ranks are the whole, tensor by tensor, and so are the states of all ranks under ZeRO-3."""
    setup = Setup(config, seq=16, precision="mixed").with_(zero=3, **ranks)
    whole = {each.name: each.elements for each in predict.rank_tensors(Setup(config), 0, "parameters")}
    stages = range(setup.pipeline)
    listed = [each for stage in stages for each in predict.rank_tensors(setup, stage, "parameters")]
    assert {t.name: t.elements * prod(ranks.get(axis, 1) for axis in t.axes) for t in listed} == whole
    # ZeRO leaves a copy, of what tensor parallelism does not cut, on each tensor rank; a tied table is twice.
    copies = [1 if "tensor" in t.axes else setup.tensor for t in listed]
    due = 16 * sum(n * whole[t.name] for n, t in zip(copies, listed))
    a_stage = setup.world_size // setup.pipeline
    total = sum(a_stage * predict.model_states(setup, stage).total for stage in stages)
    assert abs(total - due) <= 3 * a_stage * setup.pipeline  # each rank rounds three numbers


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("config", "ranks"), CUTS, ids=["GPT", "Llama", "Mixtral", "DeepSeek"])
def test_every_cut_keeps_less_and_sends_along_its_axis(config: Any, ranks: dict[str, int], recompute: Any) -> None:
    rows = 2 * ranks["data"] * ranks.get("expert", 1)
    setup = Setup(config, rows, 16, micro_batch=1, recompute=recompute).with_(**ranks)
    stage = setup.pipeline - 1
    sent = predict.rank_traffic(setup, stage)
    assert {axis for axis, n in ranks.items() if n > 1} == sent.keys()
    assert all(each.total_bytes > 0 for each in sent.values())
    kept = predict.rank_activations(setup, stage)
    for axis in ranks.keys() & ({"tensor", "context"} if recompute == "none" else {"context"}):
        assert kept < predict.rank_activations(setup.with_(**{axis: 1}), stage)
    plain = predict.rank_traffic(setup.with_(recompute="none"), stage)
    again = {axis for axis in sent if sent[axis] != plain[axis]}
    assert again == (set() if recompute == "none" else sent.keys() & {"tensor", "context", "expert"})


@pytest.mark.parametrize("how", [{}, {"recompute": "full"}, {"recompute": "full", "recompute_every": 3}], ids=str)
@pytest.mark.parametrize("config", [replace(SMALL, layers=8), replace(DEEPSEEK, layers=8)])
def test_alike_layers_are_told_once(config: Any, how: dict[str, Any]) -> None:
    """What sums are taken over is the list itself, folded: for even stages and for uneven ones."""
    setup = Setup(config, seq=16, precision="mixed", **how)
    for stage in (range(10), range(4), range(2, 8), range(5, 10), range(9, 10)):
        unfolded = Counter[tuple[str, int]]()
        for each, times in tally(setup, stage):
            unfolded[each.role, each.elements * each.element_bytes] += times
        listed = predict.rank_tensors(setup, stage)
        assert unfolded == Counter((each.role, each.elements * each.element_bytes) for each in listed)


# What people ask: Llama 3 70B on TP 8 · PP 4 · DP 4.
ASKED = Setup(zoo.LLAMA3_70B, 32, 8192, micro_batch=1, precision="mixed", tensor=8, pipeline=4, data=4, zero=1)


def test_llama_3_70b_on_128_ranks_by_hand() -> None:
    """8 key and value heads of 128, one on each tensor rank; 20 blocks a stage; s = 8192 tokens in a micro-batch."""
    assert ASKED.world_size == 128 and predict.in_flight(ASKED) == 4
    s, d, hidden, table = 8192, 8192, 28_672, 128_256 * 8192 // 8
    block = (2 * d * d + 2 * d * 1024 + 3 * d * hidden) // 8 + 2 * d
    for stage, psi in enumerate((20 * block + table, 20 * block, 20 * block, 20 * block + d + table)):
        assert predict.rank_parameters(ASKED, stage) == psi
        assert predict.model_states(ASKED, stage) == MemoryAccount(Bytes(2 * psi), Bytes(2 * psi), Bytes(12 * psi // 4))
    norms = 2 * 2 * (3 * s * d + s)
    attention = 2 * (2 * s * 128 + 3 * s * 1024) + 4 * s * 8 + 2 * 2 * s * 128
    mlp = 2 * 4 * s * hidden // 8
    kept = 20 * (norms + attention + mlp)
    assert predict.rank_activations(ASKED, 1) == kept
    assert predict.rank_memory(ASKED, 1).activations == 3 * kept
    n = 8 * 2 * s * d  # 8 micro-batches of the stream
    sent = {axis: dict(each.modelled_bytes) for axis, each in predict.rank_traffic(ASKED, 1).items()}
    psi = 20 * block
    assert sent == {
        "tensor": {"all_reduce": 20 * 4 * 2 * n * 7 // 8},
        "pipeline": {"send": 2 * n},
        "data": {"reduce_scatter": 2 * psi * 3 // 4, "all_gather": 2 * psi * 3 // 4},
    }


def test_latent_attention_sums_narrow_gradients_and_experts_their_rows() -> None:
    """DeepSeek-V3 on 2 tensor, 4 expert and 2 context ranks: one block of experts, by hand."""
    setup = Setup(DEEPSEEK_V3, 8, 4096, precision="mixed", tensor=2, expert=4, context=2)
    sent = {axis: dict(each.modelled_bytes) for axis, each in predict.rank_traffic(setup, range(10, 11)).items()}
    tokens = 2 * 4096 // 2
    n, narrow, rows = (2 * tokens * features for features in (7168, 1536 + 512 + 64, 8 * 7168))
    assert sent["tensor"] == {"all_reduce": n + narrow + 2 * rows + 2 * n}  # attention; routed; the shared expert's
    whole = 7168 * (1536 + 512 + 64) + 1536 + 512 + 2 * 7168 + 7168 * 256 + 256
    heads = 64 * (1536 * 192 + 512 * 256 + 128 * 7168)
    dense = whole + heads + 3 * 7168 * 2048 // 2
    assert sent["expert"] == {"all_to_all": 4 * rows * 3 // 4, "all_gather": 3 * 8 * 256 * 8}
    assert sent["data"] == {"all_reduce": 2 * 2 * dense * 3 // 4}  # over the expert ranks
    keys_and_values = 2 * tokens * 64 * (192 + 128)
    experts = 64 * 3 * 7168 * 2048 // 2
    assert sent["context"] == {"send": keys_and_values * 4, "all_reduce": 2 * (dense + experts)}


def test_the_expert_axis_sends_what_a_layer_of_experts_sends() -> None:
    """`expert_traffic` is held against real ranks in tests/parallel."""
    model = replace(MIXTRAL, gated=False, layers=1, expert_layers=1)
    setup = Setup(model, 8, 16, tensor=2, expert=2, data=2)
    sent = predict.rank_traffic(setup)
    layer = predict.expert_traffic(ExpertConfig(32, 24, 4, 2), Mesh({"data": 2, "expert": 2, "tensor": 2}), 8 * 16, 4)
    for operation in ("all_to_all", "all_gather"):
        assert sent["expert"].modelled_bytes[operation] == layer["expert"].modelled_bytes[operation]
    rows = layer["tensor"].modelled_bytes["all_reduce"]
    stream = predict.all_reduce(4 * 2 * 16 * 32, 2).bytes
    logits = predict.all_reduce(4 * 2 * 16 * 40, 2).bytes
    assert sent["tensor"].modelled_bytes["all_reduce"] == rows + 2 * stream + logits


def test_zero_cuts_experts_over_fewer_ranks_than_all_else() -> None:
    setup = Setup(MIXTRAL, precision="mixed", data=3, expert=4, zero=1)
    tensors = predict.rank_tensors(setup, 0, "parameters")
    experts = sum(each.elements for each in tensors if "expert" in each.axes)
    rest = sum(each.elements for each in tensors) - experts
    assert experts == 2 * 3 * 32 * 24  # one of four, in two layers
    assert predict.model_states(setup).optimizer == round(12 * (experts / 3 + rest / 12))
    sent = predict.data_traffic(setup)
    assert sent["reduce_scatter"].bytes == round(2 * experts * 2 / 3) + round(2 * rest * 11 / 12)
    assert sent["reduce_scatter"].messages == 2 + 11


# ---- the papers' estimate ------------------------------------------------------------------------------------------


def test_the_estimate_of_a_llama_is_the_list_without_what_its_kernels_spare() -> None:
    """Fused norms keep their input alone; angles, the rows' sums and a second layout of the result are not in it."""
    spared = ("rstd", "unit", "angles", "log_sum_exp", "mixed_flat")
    for how in ({}, {"tensor": 4}, {"tensor": 4, "sequence_parallel": True}, {"context": 2}, {"recompute": "full"}):
        setup = Setup(zoo.LLAMA3_8B, 2, 4096, precision="mixed", pipeline=4, **how)  # type: ignore[arg-type]
        listed = predict.rank_tensors(setup, 1, "activations")
        kept = sum(t.elements * t.element_bytes for t in listed if not t.name.endswith(spared))
        assert predict.activations_paper(setup, stage=1) == kept


def test_the_estimate_knows_a_stage_and_its_ends() -> None:
    """Korthikanti et al. 2022, §4.3: s·b·h of the embeddings' dropout, and 4·s·b·h·(1 + v/h)/t at the end."""
    whole = Setup(zoo.GPT3_175B, seq=2048, precision="mixed", tensor=8, sequence_parallel=True)
    stages = whole.with_(pipeline=8)
    assert 8 * predict.activations_paper(stages) == predict.activations_paper(whole)
    plain, stream = predict.activations_paper(stages), 2048 * 12_288
    first, inner, last = (predict.activations_paper(stages, stage=n, ends=True) for n in (0, 3, 7))
    assert (first - plain, inner) == (stream / 8, plain)
    assert last - plain == 4 * (stream + 2048 * 50_257) / 8


# ---- described by a user -------------------------------------------------------------------------------------------


def test_other_models_are_described_in_the_zoos_words() -> None:
    """Counts of the released checkpoints, as Hugging Face's model pages show them."""
    mixtral_8x22b = ExpertModel(
        "Mixtral 8x22B", layers=56, expert_layers=56, width=6144, experts=8, top_k=2, expert_hidden=16_384, gated=True,
        dense_hidden=16_384, attention=GroupedAttention(48, 8, 128),
        vocab_size=32_768, lookup=32_768, source="config.json", context=65_536,
    )  # fmt: skip
    deepseek_v2 = ExpertModel(
        "DeepSeek-V2", layers=60, expert_layers=59, width=5120, experts=160, top_k=6, expert_hidden=1536, gated=True,
        dense_hidden=12_288, attention=LatentAttention(128, 1536, 512, 128, 64, 128),
        vocab_size=102_400, lookup=102_400, shared=2, source="config.json", context=4096,
    )  # fmt: skip
    assert predict.expert_parameters(mixtral_8x22b).total == 140_630_071_296
    assert predict.expert_parameters(deepseek_v2).total == 235_741_434_880
    assert predict.rank_parameters(Setup(mixtral_8x22b, tensor=8, expert=8)) < 140_630_071_296 / 50


def test_a_tied_table_is_read_at_both_ends() -> None:
    tied = replace(MIXTRAL, lookup=0)
    assert predict.parameters(MIXTRAL) - predict.parameters(tied) == 40 * 32
    stages = Setup(tied, pipeline=2)
    held = [predict.rank_parameters(stages, stage) for stage in (0, 1)]
    assert sum(held) == predict.parameters(tied) + 40 * 32
    sent = [predict.rank_traffic(stages, stage)["pipeline"].total_bytes for stage in (0, 1)]
    assert sent == [4 * 64 * 32 + 4 * 40 * 32] * 2  # a stream, and the table's gradient


# ---- plain questions -----------------------------------------------------------------------------------------------


def test_what_needs_no_batch_wants_none() -> None:
    setup = Setup(7.5e9, precision="mixed", data=64, zero=2)
    assert predict.model_states(setup).total == 7.5e9 * (2 + 14 / 64)
    assert repr(setup) == "Setup(7,500,000,000 parameters, precision='mixed', data=64, zero=2)"
    assert setup.with_(data=48).batch_size == 48 and setup.rows_per_pass == 1
    assert Setup(MIXTRAL_8X7B, data=3, expert=8).batch_size == 24


def test_a_cache_is_asked_of_a_setup_too() -> None:
    setup = Setup(zoo.LLAMA3_8B, 4, 1000)
    assert predict.kv_cache(setup) == predict.kv_cache(zoo.LLAMA3_8B, 4, 1000) == 2 * 32 * 8 * 128 * 4 * 1000 * 2
    assert predict.kv_cache(DEEPSEEK_V3, 1, 1000) == 61 * (512 + 64) * 1000 * 2


def test_adamw_is_an_adam() -> None:
    assert Setup(SMALL, optimizer="adamw") == Setup(SMALL)
    assert predict.peak(Setup(SMALL, optimizer="adamw")) == predict.peak(Setup(SMALL))


def test_a_model_without_a_context_asks_for_the_tokens() -> None:
    assert Setup(replace(MIXTRAL, context=None), seq=16).seq == 16


test_what_does_not_hold_is_refused = refused(
    (lambda: forward_flops(Setup(MIXTRAL_8X7B)), "Mixtral 8x7B has experts.*expert_parameters"),
    (lambda: predict.expert_parameters(zoo.LLAMA3_8B), "^Llama 3 8B has no experts: a token meets all"),  # type: ignore[arg-type]
    (lambda: predict.peak(Setup(MIXTRAL_8X7B)), "needs a GPTConfig; given was: ExpertModel"),
    (lambda: predict.kv_cache(Setup(zoo.LLAMA3_8B, 4, 1000, tensor=2)), "kv_cache does not hold for tensor=2"),
    (lambda: predict.kv_cache(zoo.LLAMA3_8B), "batch_size=None, seq=None: give the sequences"),
    (lambda: predict.kv_cache(Setup(10**9)), "have no layers"),
    (lambda: Setup(replace(MIXTRAL, context=None)), "a small Mixtral says no context: give seq"),
    (lambda: Setup(SMALL, data=0), "data=0: it must be an integer, at least 1"),
    (
        lambda: Setup(7.5e9, data=64, zero=2).with_(batch_size=64).with_(data=48),
        "batch_size=64 does not split into data=48",
    ),
)
