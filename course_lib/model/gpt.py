"""The one small GPT of this course: tokens in, logits or a loss out, short enough to read in one sitting.

The architecture is GPT-2's, with four switches (norm, positions, biases, tied head). Attention is written out by
default, so that every multiplication can be counted and every saved tensor can be pointed at; `attention="fused"` hands
the same sum to PyTorch's kernel.

Shape suffixes, here and wherever this course handles a GPT's tensors:

    B  sequences in a batch       H  attention heads          F  width of the MLP's hidden layer
    S  tokens in a sequence       K  width of one head        V  entries of the vocabulary
    D  width of the model         (D = H * K)

`scores_BHSS` is then a tensor of shape (batch, heads, sequence, sequence).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_lib.model.refusals import check_sizes, one_of
from course_lib.model.seeds import mix
from course_lib.model.tiled_attention import tiled_attention


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT. `GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=128)` is enough.

    Attributes:
        layers: number of blocks.
        width: features per token (d_model, or h in the papers on memory).
        heads: attention heads; each is `width / heads` wide.
        vocab_size: number of different tokens.
        context: the longest sequence that the model accepts.
        mlp_ratio: hidden width of the MLP over `width`, unless `ffn_width` says otherwise.
        ffn_width: hidden width of the MLP in features.
        norm: "layernorm", or "rmsnorm" (no mean, no bias; Zhang and Sennrich 2019).
        positions: "learned" (a table of `context` vectors), "rotary" (no parameters; Su et al. 2021), or "none".
        bias: whether linear layers and LayerNorms have a bias. The head never has one.
        tied: whether the head uses the token embedding's matrix.
        dropout: probability of zeroing an activation in training.
        attention: "explicit" (written out), "fused" (`scaled_dot_product_attention`), or "tiled" (`tiled_attention`).

    Raises:
        ValueError: a size is not a positive integer, heads do not divide the width, rotary positions meet an odd head
            width, dropout is outside [0, 1) or meets tiled attention, or a switch has an unknown value.
    """

    layers: int
    width: int
    heads: int
    vocab_size: int
    context: int
    mlp_ratio: int = 4
    ffn_width: int | None = None
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    positions: Literal["learned", "rotary", "none"] = "learned"
    bias: bool = True
    tied: bool = True
    dropout: float = 0.0
    attention: Literal["explicit", "fused", "tiled"] = "explicit"

    def __post_init__(self) -> None:
        check_sizes(layers=self.layers, width=self.width, heads=self.heads, mlp_ratio=self.mlp_ratio)
        check_sizes(vocab_size=self.vocab_size, context=self.context, ffn_width=self.mlp_width)
        one_of("norm", self.norm, ("layernorm", "rmsnorm"))
        one_of("positions", self.positions, ("learned", "rotary", "none"))
        one_of("attention", self.attention, ("explicit", "fused", "tiled"))
        if self.width % self.heads:
            raise ValueError(
                f"width={self.width} does not split into heads={self.heads} equal heads; change one of them"
            )
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"rotary positions turn pairs of features, but a head is {self.head_width} wide; make it even"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout}: it is a probability, at least 0 and less than 1")
        if self.attention == "tiled" and self.dropout:
            raise ValueError(f"tiled attention has no weights to drop; dropout={self.dropout} needs another attention")

    @property
    def head_width(self) -> int:
        """Features of one head (K)."""
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        """Features of the MLP's hidden layer (F): `ffn_width` if given, else `mlp_ratio * width`."""
        return self.mlp_ratio * self.width if self.ffn_width is None else self.ffn_width


class GPT(nn.Module):
    """Embedding, blocks, final norm, head.

    The weights depend on `seed` and on the layer that they belong to, and on nothing else: neither on the process's
    random state, nor on the device, nor on the other layers. A pipeline stage that holds layers 3 to 5 alone therefore
    starts with the same numbers as the whole model.

    Args:
        seed: names the initial weights.
        device: where the parameters live; "meta" gives shapes without memory (and without values).
        dtype: that of the parameters; values are drawn in fp32 and rounded.

    Raises:
        ValueError: `config` is not a `GPTConfig`.
    """

    def __init__(
        self, config: GPTConfig, seed: int = 0, device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(config, GPTConfig):
            raise ValueError(
                f"a GPT is built from a GPTConfig, not from {config!r}; for a row of the zoo, give row.config"
            )
        self.config = config
        device = torch.device(device or torch.get_default_device())
        # Shapes first, without memory: PyTorch's own initialisation would draw from the process's random state.
        with torch.device("meta"):
            self.token_embedding = nn.Embedding(config.vocab_size, config.width)
            learned = config.positions == "learned"
            self.position_embedding = nn.Embedding(config.context, config.width) if learned else None
            self.embedding_dropout = nn.Dropout(config.dropout)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
            self.final_norm = make_norm(config)
            self.head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self.to(dtype or torch.get_default_dtype())
        if device.type != "meta":
            self.to_empty(device=device)  # memory, with whatever was in it
            self.initialize(seed)

    def initialize(self, seed: int) -> None:
        """Fill all parameters, in place, with the values that `seed` names (see `initialize`)."""
        layers: dict[int, list[nn.Module | None]] = {0: [self.token_embedding, self.position_embedding]}
        layers |= {int(number) + 1: [block] for number, block in self.blocks.named_children()}
        layers[self.config.layers + 1] = [self.final_norm, self.head]  # numbered as pipeline stages number them
        for layer, modules in layers.items():
            initialize(nn.ModuleList(module for module in modules if module is not None), self.config, seed, layer)

    def forward(
        self, tokens: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch seq"] | None = None
    ) -> Float[Tensor, "batch seq vocab"] | Float[Tensor, ""]:
        """Logits of the next token at every position; with `targets`, their mean cross-entropy in nats instead.

        Raises:
            ValueError: the sequence is longer than `config.context`.
        """
        if (seq := tokens.shape[1]) > self.config.context:
            raise ValueError(f"{seq} tokens given, but the context is {self.config.context}: shorten the sequence")
        return self.logits_or_loss(self.run_blocks(self.embed(tokens)), targets)

    def embed(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq width"]:
        """The stream that the first block reads."""
        return self.embedding_dropout(self.embed_at(tokens, torch.arange(tokens.shape[1], device=tokens.device)))

    def embed_at(
        self, tokens: Int[Tensor, "batch seq"], positions_S: Int[Tensor, " seq"]
    ) -> Float[Tensor, "batch seq width"]:
        """A vector for each token, and one for its position."""
        x_BSD = self.token_embedding(tokens)
        return x_BSD if self.position_embedding is None else x_BSD + self.position_embedding(positions_S)

    def run_blocks(self, x_BSD: Float[Tensor, "batch seq width"]) -> Float[Tensor, "batch seq width"]:
        """The stream behind the last block."""
        for block in self.blocks:
            x_BSD = block(x_BSD)
        return x_BSD

    def logits(self, x_BSD: Float[Tensor, "batch seq width"]) -> Float[Tensor, "batch seq vocab"]:
        """A score of every vocabulary entry, from the stream behind the last block."""
        head = self.token_embedding if self.head is None else self.head
        return F.linear(self.final_norm(x_BSD), head.weight)  # tied: the embedding's rows as the head's

    def loss(self, logits_BSV: Float[Tensor, "batch seq vocab"], targets: Tensor) -> Float[Tensor, ""]:
        """Mean cross-entropy over all tokens, in nats."""
        return loss_of(logits_BSV, targets)

    def logits_or_loss(self, x_BSD: Float[Tensor, "batch seq width"], targets: Tensor | None) -> Tensor:
        """The end of the forward pass: logits, or with targets the loss."""
        logits_BSV = self.logits(x_BSD)
        return logits_BSV if targets is None else self.loss(logits_BSV, targets)


class Block(nn.Module):
    """Attention, then an MLP; each reads a normalised copy of the stream and adds its result to it ("pre-norm")."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = Attention(config)
        self.mlp_norm = make_norm(config)
        self.mlp = MLP(config)

    def forward(self, x_BSD: Float[Tensor, "batch seq width"]) -> Float[Tensor, "batch seq width"]:
        """The stream, with both results added."""
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD))
        return x_BSD + self.mlp(self.mlp_norm(x_BSD))  # the stream itself meets no norm: gradients run straight through


class Attention(nn.Module):
    """Causal self-attention: every token takes a weighted mean of the values at its own and earlier positions."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.bias)
        self.weights_dropout = nn.Dropout(config.dropout)
        self.out_dropout = nn.Dropout(config.dropout)

    def forward(
        self, x_BSD: Float[Tensor, "batch seq width"], attend: Callable[..., Tensor] | None = None
    ) -> Float[Tensor, "batch seq width"]:
        """A vector for each token, mixed from the values of this token and of those before it, by `attend` if given."""
        heads = (-1, self.config.head_width)  # -1: tensor parallelism leaves some of the heads here
        qkv = self.qkv(x_BSD).chunk(3, dim=-1)  # (B, S, 3D) -> three of (B, S, D)
        mixed_BHSK = (attend or self.attend)(*(part.unflatten(-1, heads).transpose(1, 2) for part in qkv))
        return self.out_dropout(self.out(mixed_BHSK.transpose(1, 2).flatten(2)))  # (B, H, S, K) -> (B, S, D)

    def attend(self, q_BHSK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor) -> Tensor:
        """The weighted means of the values, for each head alone."""
        if self.config.positions == "rotary":
            q_BHSK, k_BHSK = rotate(q_BHSK), rotate(k_BHSK)  # values have no position
        mix = {"explicit": self.explicit, "fused": self.fused, "tiled": self.tiled}[self.config.attention]
        return mix(q_BHSK, k_BHSK, v_BHSK)

    def explicit(self, q_BHSK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor) -> Tensor:
        """softmax(q kᵀ / √K) v, with the future masked out; S² scores per head are written to memory."""
        seq = q_BHSK.shape[-2]
        future_SS = torch.ones(seq, seq, dtype=torch.bool, device=q_BHSK.device).triu(diagonal=1)
        scores_BHSS = (q_BHSK * self.config.head_width**-0.5) @ k_BHSK.transpose(-2, -1)  # scales S·K numbers, not S·S
        weights_BHSS = scores_BHSS.masked_fill(future_SS, -torch.inf).softmax(dim=-1)  # exp(-inf) = 0
        return self.weights_dropout(weights_BHSS) @ v_BHSK

    def fused(self, q_BHSK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor) -> Tensor:
        """The same sum in one kernel that never holds all scores (Dao et al. 2022)."""
        dropout = self.config.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q_BHSK, k_BHSK, v_BHSK, is_causal=True, dropout_p=dropout)

    def tiled(self, q_BHSK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor) -> Tensor:
        """The same sum, tile by tile, in Python."""
        return tiled_attention(q_BHSK, k_BHSK, v_BHSK, causal=True)


class MLP(nn.Module):
    """Two linear layers with a GELU between them (the tanh form, as in GPT-2); works on each token alone."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.mlp_width, bias=config.bias)
        self.down = nn.Linear(config.mlp_width, config.width, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BSD: Float[Tensor, "batch seq width"]) -> Float[Tensor, "batch seq width"]:
        """Up to the hidden layer, through GELU, and down again."""
        hidden_BSF = F.gelu(self.up(x_BSD), approximate="tanh")
        return self.dropout(self.down(hidden_BSF))


class RMSNorm(nn.Module):
    """x divided by its root mean square, times a learned scale. Written out: `nn.RMSNorm` saves other tensors for the
    backward pass from one PyTorch version to the next."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x_BSD: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """Every row, scaled to a root mean square of 1."""
        return x_BSD * torch.rsqrt(x_BSD.square().mean(-1, keepdim=True) + 1e-5) * self.weight


def make_norm(config: GPTConfig) -> nn.Module:
    """The norm that `config` names."""
    return RMSNorm(config.width) if config.norm == "rmsnorm" else nn.LayerNorm(config.width, bias=config.bias)


def rotate(
    x_BHSK: Float[Tensor, "batch heads seq head_width"], positions_S: Int[Tensor, " seq"] | None = None
) -> Float[Tensor, "batch heads seq head_width"]:
    """Rotary positions (by default 0, 1, 2, …): turn feature pair i at position s by the angle s / 10000^(2i/K)."""
    seq, head_width = x_BHSK.shape[-2:]
    pairs = torch.arange(head_width // 2, dtype=torch.float32, device=x_BHSK.device)
    positions = torch.arange(seq, device=x_BHSK.device) if positions_S is None else positions_S
    angles = torch.outer(positions.float(), 10_000 ** (-2 * pairs / head_width))  # fast for small i, slow for large
    cos, sin = angles.cos().to(x_BHSK.dtype), angles.sin().to(x_BHSK.dtype)
    first, second = x_BHSK.chunk(2, dim=-1)  # pair i is the features i and i + K/2
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def loss_of(logits_BSV: Float[Tensor, "batch seq vocab"], targets_BS: Int[Tensor, "batch seq"]) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats over all tokens; 16-bit logits are widened first, since a sum of V exponentials is not
    safe in 16 bits."""
    wide = torch.promote_types(logits_BSV.dtype, torch.float32)
    return F.cross_entropy(logits_BSV.to(wide).flatten(0, 1), targets_BS.flatten())


@torch.no_grad()
def initialize(module: nn.Module, config: GPTConfig, seed: int, layer: int) -> None:
    """Fill one layer's parameters, in place: matrices N(0, 0.02), biases 0, norms 1, as in GPT-2 (its positions: 0.01).

    The two matrices of a block that write into the stream are divided by √(2 · layers), so that the stream's variance
    does not grow with depth (Radford et al. 2019, §2.3). Layer 0 is the embeddings, blocks are 1 to `layers`, and
    `layers + 1` is the final norm and the head. Parameters on the "meta" device are left alone.
    """
    generator = torch.Generator().manual_seed(mix(seed, layer))
    for name, parameter in module.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        std = 0.02 / (2 * config.layers) ** 0.5 if name.endswith(("out.weight", "down.weight")) else 0.02
        # Drawn on the CPU in fp32: the same numbers whatever the device and the dtype.
        parameter.copy_(torch.randn(parameter.shape, generator=generator, device="cpu") * std)
