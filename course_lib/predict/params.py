"""How many parameters a shape has, without building it."""

from __future__ import annotations

from course_kit.units import Count
from course_lib.model.gpt import GPTConfig
from course_lib.model.zoo import Architecture, Published

Shape = GPTConfig | Architecture | Published
"""What formulas are computed from: a config, or a row of the zoo."""


def config_of(shape: Shape) -> GPTConfig | Architecture:
    """The config that `shape` is or holds."""
    return shape.config if isinstance(shape, Published) else shape


def kv_heads_of(config: GPTConfig | Architecture) -> int:
    """Heads of keys and values; our GPT has one for every query head."""
    return config.kv_heads if isinstance(config, Architecture) else config.heads


def parameters(shape: Shape) -> Count:
    """Number of parameters: equal to `sum(p.numel() for p in model.parameters())`, tied weights counted once.

    For GPT-2's shape this is 12·l·d² + 13·l·d + (V + s)·d + 2·d.

    Source: Radford et al. 2019; Narayanan et al. 2021, eq. 2.
    """
    config = config_of(shape)
    norm = norm_parameters(config)
    blocks = config.layers * (attention_parameters(config) + mlp_parameters(config) + 2 * norm)
    return Count(embedding_parameters(config) + blocks + norm + head_parameters(config))


def embedding_parameters(config: GPTConfig | Architecture) -> int:
    """Token embedding, and the position table where positions are learned."""
    table = config.context if isinstance(config, GPTConfig) and config.positions == "learned" else 0
    return (config.vocab_size + table) * config.width


def attention_parameters(config: GPTConfig | Architecture) -> int:
    """One layer's attention: queries and output are width × width, keys and values are as wide as their heads."""
    width, kv_width = config.width, kv_heads_of(config) * config.head_width
    weights = 2 * width * width + 2 * width * kv_width
    if isinstance(config, Architecture):
        return weights + (width * width if config.positions == "relative" else 0)
    return weights + (4 * width if config.bias else 0)


def mlp_parameters(config: GPTConfig | Architecture) -> int:
    """One layer's MLP: two matrices, or three where the hidden layer is gated."""
    weights = 2 * config.width * config.mlp_width
    if isinstance(config, Architecture):
        return weights * 3 // 2 if config.gated else weights
    return weights + (config.mlp_width + config.width if config.bias else 0)


def norm_parameters(config: GPTConfig | Architecture) -> int:
    """One norm: a scale, and a bias where it has one."""
    has_bias = isinstance(config, GPTConfig) and config.norm == "layernorm" and config.bias
    return config.width * (2 if has_bias else 1)


def head_parameters(config: GPTConfig | Architecture) -> int:
    """The head's own matrix; none where it is tied to the embedding."""
    return 0 if config.tied else config.vocab_size * config.width
