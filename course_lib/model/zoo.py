"""Published models: their shape, their size as published, and where both were read.

A row whose architecture is our GPT's holds a `GPTConfig`, so `GPT(zoo.GPT2_SMALL.config)` builds it. The others hold an
`Architecture`, which says enough to count parameters, FLOPs, memory and traffic, and which `GPT` does not run; an
`ExpertModel` does the same for a model with experts, and stands for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from course_lib.model.gpt import GPTConfig


@dataclass(frozen=True)
class GroupedAttention:
    """Attention whose query heads share heads of keys and values, `head_width` features each."""

    heads: int
    kv_heads: int  # as many as `heads` where nothing is shared
    head_width: int

    @property
    def kv_features(self) -> int:
        """Numbers in a token's keys and values, of all heads together."""
        return 2 * self.kv_heads * self.head_width

    cached_features = kv_features
    """Numbers that a cache keeps of a token: its keys and values."""


@dataclass(frozen=True)
class LatentAttention:
    """DeepSeek's attention: queries, and keys with values, pass through a narrow vector that has a norm.

    Attributes:
        heads: number of heads, the same for queries, keys and values.
        query_rank, kv_rank: features of the narrow vector of queries, and of that of keys and values.
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
        """Numbers in a token's keys and values, of all heads together."""
        return self.heads * (self.plain + self.turned + self.value)

    @property
    def cached_features(self) -> int:
        """Numbers that a cache keeps of a token: the narrow vector and the turned key."""
        return self.kv_rank + self.turned


@dataclass(frozen=True)
class Architecture:
    """The shape of a published decoder that differs from our GPT.

    Attributes:
        layers, width: number of blocks, features of a token.
        heads, kv_heads: attention heads of queries; of keys and values, fewer in grouped-query attention.
        ffn_width: hidden width of the MLP.
        vocab_size: entries of the vocabulary, padding included.
        context: sequence length of (the main part of) training.
        gated: whether the MLP has a third matrix that gates its hidden layer (SwiGLU).
        positions: "rotary" has no parameters; "relative" has one more width × width projection per layer
            (Transformer-XL).
        tied: whether the head uses the token embedding's matrix.

    All norms are RMSNorms, and no layer has a bias.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    vocab_size: int
    context: int
    gated: bool
    positions: Literal["rotary", "relative"]
    tied: bool

    @property
    def head_width(self) -> int:
        """Features of one head."""
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        """Features of the MLP's hidden layer."""
        return self.ffn_width

    @property
    def attention(self) -> GroupedAttention:
        """The heads of queries, and of keys and values."""
        return GroupedAttention(self.heads, self.kv_heads, self.head_width)


@dataclass(frozen=True)
class ExpertModel:
    """The shape of a model with experts. Encoder and decoder count together where there are two.

    Attributes:
        name: the authors' name for the model.
        layers, width: number of blocks, features of a token.
        expert_layers: number of blocks that have experts in place of their MLP.
        experts: number of experts in each such layer.
        top_k: number of experts that a token goes to.
        expert_hidden: hidden features of an expert.
        gated: whether an MLP, and an expert, has a third matrix.
        dense_hidden: hidden features of the other blocks' MLP.
        attention: of every block; all are alike.
        vocab_size: rows of the head.
        lookup: rows of the tables that are only looked up, and multiply nothing; 0 where the head is the table.
        shared: experts that every token of an expert layer meets, besides.
        router_bias: whether each expert has a number that is added to its score.
        source: where the shape was read.
        context: sequence length of (the main part of) training; None where it was not read.
        two_streams: whether half of the blocks are an encoder's, half a decoder's, which also attend to the encoder.
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
    attention: GroupedAttention | LatentAttention
    vocab_size: int
    lookup: int
    source: str
    shared: int = 0
    router_bias: bool = False
    context: int | None = None
    two_streams: bool = False

    @property
    def heads(self) -> int:
        """Attention heads of the queries."""
        return self.attention.heads

    @property
    def tied(self) -> bool:
        """Whether the head uses the token embedding's matrix."""
        return not self.lookup

    def has_experts(self, block: int) -> bool:
        """Whether this block, from 1, is one of the `expert_layers`: the last ones, or every so many."""
        every = self.layers // self.expert_layers if self.expert_layers else 0
        return bool(every) and block > self.layers - self.expert_layers * every and (self.layers - block) % every == 0


@dataclass(frozen=True)
class Published:
    """One row of the zoo."""

    name: str  # as its authors call it
    config: GPTConfig | Architecture
    parameters: int  # as published
    tolerance: float  # relative distance that rounding in print explains; 0 where the count is exact
    source: str  # where shape and count were read
    note: str = ""  # misprints and other traps


_GPT2 = "Radford et al. 2019, Table 2 (layers, width); counts of the released checkpoints"


def _gpt2(name: str, layers: int, width: int, heads: int, parameters: int, printed: str) -> Published:
    config = GPTConfig(layers, width, heads, vocab_size=50257, context=1024)
    note = f"The paper prints {printed}; openai/gpt-2's README corrects it."
    return Published(name, config, parameters, 0, _GPT2, note)


GPT2_SMALL = _gpt2("GPT-2 small", 12, 768, 12, 124_439_808, "117M")
GPT2_MEDIUM = _gpt2("GPT-2 medium", 24, 1024, 16, 354_823_168, "345M")
GPT2_LARGE = _gpt2("GPT-2 large", 36, 1280, 20, 774_030_080, "762M")
GPT2_XL = _gpt2("GPT-2 XL", 48, 1600, 25, 1_557_611_200, "1542M")

_GPT3 = "Brown et al. 2020, Table 2.1 (shape) and Table D.1 (count)"
_TRANSCRIBED = "Both tables were read in transcriptions of the paper."
_GPT3_MISPRINT_13B = "Table 2.1 prints a width of 5140; only 40 heads × 128 = 5120 gives Table D.1's count."
_GPT3_MISPRINT_XL = "Table 2.1 prints 24 heads × 128 = 3072, which is not the width; 16 × 128 = 2048 is."


def _gpt3(name: str, layers: int, width: int, heads: int, millions: int, note: str = "") -> Published:
    config = GPTConfig(layers, width, heads, vocab_size=50257, context=2048)
    return Published(f"GPT-3 {name}", config, millions * 10**6, 0.006, _GPT3, note)


GPT3_SMALL = _gpt3("125M", 12, 768, 12, 125)
GPT3_MEDIUM = _gpt3("350M", 24, 1024, 16, 356, _TRANSCRIBED)
GPT3_LARGE = _gpt3("760M", 24, 1536, 16, 760)
GPT3_XL = _gpt3("1.3B", 24, 2048, 16, 1_320, _GPT3_MISPRINT_XL)
GPT3_2_7B = _gpt3("2.7B", 32, 2560, 32, 2_650, _TRANSCRIBED)
GPT3_6_7B = _gpt3("6.7B", 32, 4096, 32, 6_660)
GPT3_13B = _gpt3("13B", 40, 5120, 40, 12_850, _GPT3_MISPRINT_13B)
GPT3_175B = _gpt3("175B", 96, 12288, 96, 174_600)

_GOPHER = "Rae et al. 2021, Table 1 (read in a secondary copy)"
_RELATIVE = (
    "13·l·d² + V·d: 12 as in a GPT, and 1 for Transformer-XL's relative positions (inferred; it fits every row)."
)


def _gopher(
    name: str, layers: int, width: int, heads: int, parameters: int, source: str = _GOPHER, tolerance: float = 0.02
) -> Published:  # fmt: skip
    config = Architecture(
        layers, width, heads, heads, 4 * width, 32_000, 2048, gated=False, positions="relative", tied=True
    )  # fmt: skip
    return Published(name, config, parameters, tolerance, source, _RELATIVE)


GOPHER_44M = _gopher("Gopher 44M", 8, 512, 16, 44 * 10**6)
GOPHER_117M = _gopher("Gopher 117M", 12, 768, 12, 117 * 10**6)
GOPHER_280B = _gopher("Gopher 280B", 80, 16384, 128, 280 * 10**9)
CHINCHILLA_70B = _gopher("Chinchilla 70B", 80, 8192, 64, 70 * 10**9, "Hoffmann et al. 2022, Table 4", 0.01)

MT_NLG_530B = Published(
    "MT-NLG 530B",
    GPTConfig(105, 20480, 128, vocab_size=51_200, context=2048),
    529_600 * 10**6,
    0.0005,
    "Narayanan et al. 2021, Table 1, last row (MT-NLG's shape)",
)
NEOX_20B = Published(
    "GPT-NeoX-20B",
    GPTConfig(44, 6144, 64, vocab_size=50_432, context=2048, positions="rotary", tied=False),
    20_554_567_680,
    0,
    "Black et al. 2022; configs/20B.yml of EleutherAI/gpt-neox; the checkpoint's count as quoted by others",
    "The vocabulary is padded from 50,257 to 50,432. Attention and MLP run side by side, which changes no count; "
    "only a quarter of each head is rotated.",
)

_LLAMA2 = "Touvron et al. 2023 (Llama 2); Hugging Face configs; counts as quoted by others"
_LLAMA3 = "Llama 3 paper, Table 3; torchtitan models/llama3; counts as quoted by others"


def _llama(
    name: str, layers: int, width: int, heads: int, kv_heads: int, ffn_width: int, parameters: int, note: str = ""
) -> Published:
    second = name.startswith("Llama 2")
    vocab_size, context = (32_000, 4096) if second else (128_256, 8192)
    config = Architecture(
        layers, width, heads, kv_heads, ffn_width, vocab_size, context, gated=True, positions="rotary", tied=False
    )  # fmt: skip
    return Published(name, config, parameters, 0, _LLAMA2 if second else _LLAMA3, note)


LLAMA2_7B = _llama("Llama 2 7B", 32, 4096, 32, 32, 11_008, 6_738_415_616)
LLAMA2_13B = _llama("Llama 2 13B", 40, 5120, 40, 40, 13_824, 13_015_864_320)
LLAMA2_70B = _llama("Llama 2 70B", 80, 8192, 64, 8, 28_672, 68_976_648_192)
LLAMA3_8B = _llama("Llama 3 8B", 32, 4096, 32, 8, 14_336, 8_030_261_248)
LLAMA3_70B = _llama("Llama 3 70B", 80, 8192, 64, 8, 28_672, 70_553_706_496)
LLAMA3_405B = _llama(
    "Llama 3 405B", 126, 16384, 128, 8, 53_248, 405_853_388_800,
    "An early copy of Table 3 prints other MLP widths; 53,248 gives the count.",
)  # fmt: skip


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
    attention=GroupedAttention(32, 8, 128),
    vocab_size=32_000,
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
    attention=LatentAttention(128, query_rank=1536, kv_rank=512, plain=128, turned=64, value=128),
    vocab_size=129_280,
    lookup=129_280,
    source="DeepSeek-AI 2024, §4.2; inference/configs/config_671B.json of deepseek-ai/DeepSeek-V3",
    shared=1,
    router_bias=True,
    context=4096,
)
"""A head's queries have 192 features and its values 128: `predict` assumes a kernel that takes both as they are."""


def _switch(name: str, blocks: int, width: int, hidden: int, heads: int, experts: int, every: int) -> ExpertModel:
    """T5's encoder and decoder of `blocks` each; the tables are the embedding, which is the head of Switch's T5 1.1,
    and the head."""
    return ExpertModel(
        name, layers=2 * blocks, expert_layers=2 * blocks // every, width=width, experts=experts, top_k=1,
        expert_hidden=hidden, gated=every > 1, dense_hidden=hidden, attention=GroupedAttention(heads, heads, 64),
        vocab_size=32_128, lookup=32_128, source="Fedus et al. 2021, Table 9", two_streams=True,
    )  # fmt: skip


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
        attention=GroupedAttention(16, 16, 128),
        vocab_size=32_000,
        lookup=64_000 + 32_000,
        source="Lepikhin et al. 2020, Table 1 and appendix A.2",
        two_streams=True,
    )


ALL: tuple[Published, ...] = tuple(row for row in globals().values() if isinstance(row, Published))
"""Every row without experts, family by family."""
