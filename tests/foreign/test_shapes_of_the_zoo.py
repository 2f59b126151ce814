"""The zoo's rows against modules of transformers of the same shape, without memory: every parameter by its name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPTConfig
from course_lib.model.zoo import Architecture, ExpertModel, GroupedAttention, LatentAttention, Published
from course_lib.predict import Setup
from tests.foreign.models import transformers

Names = dict[str, str]
"""Our names → theirs: of modules, or of single parameters."""
GPT2: Names = {
    "token_embedding": "transformer.wte", "position_embedding": "transformer.wpe", "blocks": "transformer.h",
    "final_norm": "transformer.ln_f", "attention_norm": "ln_1", "mlp_norm": "ln_2", "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj",
}  # fmt: skip
NEOX: Names = {
    "token_embedding": "gpt_neox.embed_in", "blocks": "gpt_neox.layers", "final_norm": "gpt_neox.final_layer_norm",
    "head": "lm_head", "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "attention.qkv": "attention.query_key_value", "attention.out": "attention.dense",
    "mlp.up": "mlp.dense_h_to_4h", "mlp.down": "mlp.dense_4h_to_h",
}  # fmt: skip
LLAMA: Names = {
    "token_embedding": "model.embed_tokens", "blocks": "model.layers", "final_norm": "model.norm", "head": "lm_head",
    "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    **{f"attention.{ours}": f"self_attn.{theirs}_proj" for ours, theirs in zip(("q", "k", "v", "out"), "qkvo")},
    **{f"mlp.{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}  # fmt: skip
EXPERTS: Names = LLAMA | {
    "router": "mlp.gate", "router.bias": "mlp.gate.e_score_correction_bias",
    "experts.gate.weight": "mlp.experts.gate_up_proj", "experts.up.weight": "mlp.experts.gate_up_proj",
    "experts.down.weight": "mlp.experts.down_proj",
    **{f"shared_experts.{part}": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
    "attention.q_down": "self_attn.q_a_proj", "attention.q_norm": "self_attn.q_a_layernorm",
    "attention.q_up": "self_attn.q_b_proj", "attention.kv_down": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_norm": "self_attn.kv_a_layernorm", "attention.kv_up": "self_attn.kv_b_proj",
}  # fmt: skip


def gpt(row: Published) -> tuple[str, dict[str, Any], Names]:
    """GPT-2, or GPT-NeoX."""
    c = row.config
    assert isinstance(c, GPTConfig)
    if c.positions == "learned":
        sizes = {"n_layer": c.layers, "n_embd": c.width, "n_head": c.heads, "n_positions": c.context}
        return "GPT2", sizes | {"vocab_size": c.vocab_size}, GPT2
    return "GPTNeoX", decoder(c.layers, c.width, c.heads, c.mlp_width, c.vocab_size), NEOX


def llama(row: Published) -> tuple[str, dict[str, Any], Names]:
    """Llama 2 and 3."""
    c = row.config
    assert isinstance(c, Architecture)
    sizes = decoder(c.layers, c.width, c.heads, c.ffn_width, c.vocab_size)
    return "Llama", sizes | {"num_key_value_heads": c.kv_heads}, LLAMA


def experts(row: ExpertModel) -> tuple[str, dict[str, Any], Names]:
    """Mixtral and DeepSeek-V3."""
    a = row.attention
    if isinstance(a, GroupedAttention):
        sizes = decoder(row.layers, row.width, row.heads, row.expert_hidden, row.vocab_size)
        return "Mixtral", sizes | {"num_key_value_heads": a.kv_heads, "num_local_experts": row.experts}, EXPERTS
    assert isinstance(a, LatentAttention)
    sizes = decoder(row.layers, row.width, row.heads, row.dense_hidden, row.vocab_size) | {
        "num_key_value_heads": row.heads, "q_lora_rank": a.query_rank, "kv_lora_rank": a.kv_rank,
        "qk_nope_head_dim": a.plain, "qk_rope_head_dim": a.turned, "v_head_dim": a.value,
        "moe_intermediate_size": row.expert_hidden, "n_routed_experts": row.experts, "n_shared_experts": row.shared,
        "first_k_dense_replace": row.layers - row.expert_layers,
    }  # fmt: skip
    return "DeepseekV3", sizes, EXPERTS


def decoder(layers: int, width: int, heads: int, hidden: int, vocabulary: int) -> dict[str, Any]:
    """What most configs call the same."""
    return {
        "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads, "intermediate_size": hidden,
        "vocab_size": vocabulary, "tie_word_embeddings": False,
    }  # fmt: skip


ROWS: dict[str, tuple[Any, Any]] = {
    **{row.name: (row, gpt) for row in zoo.ALL if row.name.startswith(("GPT-2", "GPT-NeoX"))},
    **{row.name: (row, llama) for row in zoo.ALL if row.name.startswith("Llama")},
    **{row.name: (row, experts) for row in (zoo.MIXTRAL_8X7B, zoo.DEEPSEEK_V3)},
}


DEFAULTS = ("GPT-2 small", "GPT-NeoX-20B", "Llama 2 7B", "Mixtral 8x7B", "DeepSeek-V3")
"""Rows whose sizes are those of transformers' config when it is told nothing."""


def their_name(ours: str, names: Names) -> str:
    """What transformers calls one of our parameters."""
    before, part = "", ours
    if ours.startswith("blocks."):
        _, number, part = ours.split(".", 2)
        before = f"{names['blocks']}.{number}."
    module, kind = part.rsplit(".", 1)
    return before + names.get(part, f"{names.get(module)}.{kind}")


def test_the_rows_are_those_that_transformers_has() -> None:
    assert len(ROWS) == 4 + 1 + 6 + 2


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if "small" not in name else ()) for name in ROWS]
)
def test_every_parameter_has_its_counterpart(name: str) -> None:
    """Gates and upper matrices of experts are one tensor there, and the bias of DeepSeek's router is a buffer."""
    row, shape = ROWS[name]
    kind, sizes, names = shape(row)
    sizes = {"tie_word_embeddings": kind == "GPT2"} if name in DEFAULTS else sizes
    with torch.device("meta"):
        module = getattr(transformers, f"{kind}ForCausalLM" if kind != "GPT2" else "GPT2LMHeadModel")(
            getattr(transformers, f"{kind}Config")(**sizes)
        )
    theirs = {each: parameter.numel() for each, parameter in module.named_parameters()}
    theirs |= {each: b.numel() for each, b in module.named_buffers() if each.endswith("e_score_correction_bias")}
    ours = Counter[str]()
    for tensor in predict.rank_tensors(Setup(row, seq=1), 0, "parameters"):
        ours[their_name(tensor.name, names)] += tensor.elements
    assert dict(ours) == theirs
    assert predict.parameters(row) == sum(theirs.values()) == getattr(row, "parameters", sum(theirs.values()))
