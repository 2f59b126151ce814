"""Published models with experts: enough of their shape to count parameters, FLOPs and traffic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExpertModel:
    """One model. Encoder and decoder count together where there are two.

    Attributes:
        name: as its authors call it.
        layers: blocks.
        expert_layers: how many of them have experts in place of their MLP.
        width: features of a token.
        experts: in each such layer.
        top_k: to how many of them a token goes.
        expert_hidden: hidden features of an expert.
        gated: whether an MLP, and an expert, has a third matrix.
        dense_hidden: hidden features of the other blocks' MLP.
        attentions: attention sublayers; a decoder's block that looks at an encoder has two.
        attention_parameters: of one of them, the norms inside it among them.
        norms: vectors of the model's width that scale.
        vocabulary: rows of all tables of tokens, the head's among them.
        lookup: how many of these rows are only looked up, and multiply nothing.
        shared: experts that every token of an expert layer meets, besides.
        router_bias: whether each expert has a number that is added to its score.
        source: where the shape was read.
    """

    name: str
    layers: int
    expert_layers: int
    width: int
    experts: int
    top_k: int
    expert_hidden: int
    gated: bool
    dense_hidden: int
    attentions: int
    attention_parameters: int
    norms: int
    vocabulary: int
    lookup: int
    source: str
    shared: int = 0
    router_bias: bool = False


def _grouped(width: int, heads: int, kv_heads: int, head_width: int) -> int:
    """Queries and output, keys and values."""
    return 2 * width * head_width * (heads + kv_heads)


def _latent(width: int, heads: int, query_rank: int, kv_rank: int, plain: int, turned: int, value: int) -> int:
    """DeepSeek's latent attention: queries, and keys with values, pass through a narrow vector that has a norm."""
    queries = width * query_rank + query_rank + query_rank * heads * (plain + turned)
    keys_and_values = width * (kv_rank + turned) + kv_rank + kv_rank * heads * (plain + value)
    return queries + keys_and_values + heads * value * width


MIXTRAL_8X7B = ExpertModel(
    "Mixtral 8x7B",
    layers=32,
    expert_layers=32,
    width=4096,
    experts=8,
    top_k=2,
    expert_hidden=14_336,
    gated=True,
    dense_hidden=14_336,
    attentions=32,
    attention_parameters=_grouped(4096, 32, 8, 128),
    norms=2 * 32 + 1,
    vocabulary=2 * 32_000,
    lookup=32_000,
    source="Jiang et al. 2024, Table 1",
)
DEEPSEEK_V3 = ExpertModel(
    "DeepSeek-V3",
    layers=61,
    expert_layers=58,
    width=7168,
    experts=256,
    top_k=8,
    expert_hidden=2048,
    gated=True,
    dense_hidden=18_432,
    attentions=61,
    attention_parameters=_latent(7168, 128, query_rank=1536, kv_rank=512, plain=128, turned=64, value=128),
    norms=2 * 61 + 1,
    vocabulary=2 * 129_280,
    lookup=129_280,
    source="DeepSeek-AI 2024, §4.2; inference/configs/config_671B.json of deepseek-ai/DeepSeek-V3",
    shared=1,
    router_bias=True,
)


def _switch(name: str, blocks: int, width: int, hidden: int, heads: int, experts: int, every: int) -> ExpertModel:
    """T5's encoder and decoder of `blocks` each; the tables are the embedding, which is the head of Switch's T5 1.1,
    and the head."""
    return ExpertModel(
        name,
        layers=2 * blocks,
        expert_layers=2 * blocks // every,
        width=width,
        experts=experts,
        top_k=1,
        expert_hidden=hidden,
        gated=every > 1,
        dense_hidden=hidden,
        attentions=3 * blocks,
        attention_parameters=_grouped(width, heads, heads, 64),
        norms=5 * blocks + 2,
        vocabulary=2 * 32_128,
        lookup=32_128,
        source="Fedus et al. 2021, Table 9",
    )


SWITCH_BASE = _switch("Switch-Base", 12, 768, 2048, 12, experts=128, every=2)
SWITCH_LARGE = _switch("Switch-Large", 24, 1024, 2816, 16, experts=128, every=2)
SWITCH_XXL = _switch("Switch-XXL", 24, 4096, 10_240, 64, experts=128, every=2)
"""Table 9 prints 64 experts; only 128 give its 395B, and the released weights have 128."""
SWITCH_C = _switch("Switch-C", 15, 2080, 6144, 32, experts=2048, every=1)


def gshard(experts: int, layers: int) -> ExpertModel:
    """MoE(`experts`E, `layers`L): every other block has experts; half of the blocks are the decoder's."""
    return ExpertModel(
        f"MoE({experts}E, {layers}L)",
        layers=layers,
        expert_layers=layers // 2,
        width=1024,
        experts=experts,
        top_k=2,
        expert_hidden=8192,
        gated=False,
        dense_hidden=8192,
        attentions=layers * 3 // 2,
        attention_parameters=_grouped(1024, 16, 16, 128),
        norms=layers * 5 // 2 + 2,
        vocabulary=64_000 + 2 * 32_000,
        lookup=64_000 + 32_000,
        source="Lepikhin et al. 2020, Table 1 and appendix A.2",
    )


ALL = (MIXTRAL_8X7B, DEEPSEEK_V3, SWITCH_BASE, SWITCH_LARGE, SWITCH_XXL, SWITCH_C, gshard(2048, 36))
"""Those that have a name of their own, and GShard's largest."""
