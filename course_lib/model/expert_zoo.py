"""Published models with experts: enough of their shape to count parameters, FLOPs, memory and traffic.

Another model is described in the same words, an `ExpertModel` with `GroupedAttention` or `LatentAttention`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupedAttention:
    """Attention whose query heads share heads of keys and values.

    Attributes:
        heads: of the queries.
        kv_heads: of keys and values; as many as `heads` where nothing is shared.
        head_width: features of each.
    """

    heads: int
    kv_heads: int
    head_width: int

    @property
    def kv_features(self) -> int:
        """Numbers that a token's keys and values are, of all heads together."""
        return 2 * self.kv_heads * self.head_width

    @property
    def cached_features(self) -> int:
        """Numbers that a cache keeps of a token: its keys and values."""
        return self.kv_features

    def parameters(self, width: int) -> int:
        """Elements of the matrices of queries and output, of keys and of values, in a model of this width."""
        return 2 * width * self.head_width * (self.heads + self.kv_heads)


@dataclass(frozen=True)
class LatentAttention:
    """DeepSeek's attention: queries, and keys with values, pass through a narrow vector that has a norm.

    Attributes:
        heads: of queries, keys and values.
        query_rank: features of the queries' narrow vector.
        kv_rank: features of the narrow vector of keys and values.
        plain: features of a head's query and key that positions leave alone.
        turned: features that positions turn; the key's are the same for all heads.
        value: features of a head's value.
    """

    heads: int
    query_rank: int
    kv_rank: int
    plain: int
    turned: int
    value: int

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values: as many as of queries."""
        return self.heads

    @property
    def kv_features(self) -> int:
        """Numbers that a token's keys and values are, of all heads together."""
        return self.heads * (self.plain + self.turned + self.value)

    @property
    def cached_features(self) -> int:
        """Numbers that a cache keeps of a token: the narrow vector and the turned key."""
        return self.kv_rank + self.turned

    def parameters(self, width: int) -> int:
        """Elements of all matrices and of the two norms, in a model of this width."""
        down = width * (self.query_rank + self.kv_rank + self.turned) + self.query_rank + self.kv_rank
        up = self.query_rank * (self.plain + self.turned) + self.kv_rank * (self.plain + self.value)
        return down + self.heads * (up + self.value * width)


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
        attention: one of them; all are alike.
        norms: vectors of the model's width that scale.
        vocabulary: rows of all tables of tokens, the head's among them.
        lookup: how many of these rows are only looked up, and multiply nothing.
        shared: experts that every token of an expert layer meets, besides.
        router_bias: whether each expert has a number that is added to its score.
        source: where the shape was read.
        context: sequence length of (the main part of) training; None where it was not read.
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
    attention: GroupedAttention | LatentAttention
    norms: int
    vocabulary: int
    lookup: int
    source: str
    shared: int = 0
    router_bias: bool = False
    context: int | None = None

    @property
    def heads(self) -> int:
        """Attention heads of the queries."""
        return self.attention.heads

    @property
    def tied(self) -> bool:
        """Whether the head uses the token embedding's matrix."""
        return not self.lookup

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return self.vocabulary - self.lookup

    @property
    def two_streams(self) -> bool:
        """Whether there are an encoder and a decoder, each with tokens of its own."""
        return self.attentions > self.layers

    def has_experts(self, block: int) -> bool:
        """Whether this block, from 1, is one of the `expert_layers`: the last ones, or every so many."""
        every = self.layers // self.expert_layers if self.expert_layers else 0
        return bool(every) and block > self.layers - self.expert_layers * every and (self.layers - block) % every == 0


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
    attention=GroupedAttention(32, 8, 128),
    norms=2 * 32 + 1,
    vocabulary=2 * 32_000,
    lookup=32_000,
    source="Jiang et al. 2024, Table 1",
    context=32_768,
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
    attention=LatentAttention(128, query_rank=1536, kv_rank=512, plain=128, turned=64, value=128),
    norms=2 * 61 + 1,
    vocabulary=2 * 129_280,
    lookup=129_280,
    source="DeepSeek-AI 2024, §4.2; inference/configs/config_671B.json of deepseek-ai/DeepSeek-V3",
    shared=1,
    router_bias=True,
    context=4096,
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
        attention=GroupedAttention(heads, heads, 64),
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
        attention=GroupedAttention(16, 16, 128),
        norms=layers * 5 // 2 + 2,
        vocabulary=64_000 + 2 * 32_000,
        lookup=64_000 + 32_000,
        source="Lepikhin et al. 2020, Table 1 and appendix A.2",
    )


ALL = (MIXTRAL_8X7B, DEEPSEEK_V3, SWITCH_BASE, SWITCH_LARGE, SWITCH_XXL, SWITCH_C, gshard(2048, 36))
"""Those that have a name of their own, and GShard's largest."""
