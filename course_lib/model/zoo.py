"""Published models: their shape, their size as published, and where both were read.

A row whose architecture is our GPT's holds a `GPTConfig`, so `GPT(zoo.GPT2_SMALL.config)` builds it. The others hold an
`Architecture`, which says enough to count parameters, FLOPs and cache, and which `GPT` does not run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from course_lib.model.expert_zoo import GroupedAttention
from course_lib.model.gpt import GPTConfig


@dataclass(frozen=True)
class Architecture:
    """The shape of a published decoder that differs from our GPT.

    Attributes:
        layers: number of blocks.
        width: features per token.
        heads: attention heads of the queries.
        kv_heads: heads of keys and values; fewer than `heads` in grouped-query attention.
        ffn_width: hidden width of the MLP.
        vocab_size: entries of the vocabulary, padding included.
        context: sequence length of (the main part of) training.
        gated: whether the MLP has a third matrix that gates its hidden layer (SwiGLU).
        positions: "rotary" has no parameters; "relative" has one more width × width projection per layer
            (Transformer-XL).
        tied: whether the head uses the token embedding's matrix.

    Its norms are RMSNorms, and nothing in it has a bias.
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
        """Its heads."""
        return GroupedAttention(self.heads, self.kv_heads, self.head_width)


@dataclass(frozen=True)
class Published:
    """One row of the zoo.

    Attributes:
        name: as its authors call it.
        config: the shape.
        parameters: as published.
        tolerance: relative distance that rounding in print explains; 0 where the count is exact.
        source: where shape and count were read.
        note: misprints and other traps.
    """

    name: str
    config: GPTConfig | Architecture
    parameters: int
    tolerance: float
    source: str
    note: str = ""


_GPT2 = "Radford et al. 2019, Table 2 (layers, width); counts of the released checkpoints"


def _gpt2(name: str, layers: int, width: int, heads: int, parameters: int, printed: str) -> Published:
    config = GPTConfig(layers, width, heads, vocab_size=50257, context=1024)
    return Published(
        name, config, parameters, 0, _GPT2, f"The paper prints {printed}; openai/gpt-2's README corrects it."
    )


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

ALL: tuple[Published, ...] = tuple(row for row in globals().values() if isinstance(row, Published))
"""Every row, family by family."""
