"""How many floating-point operations a step takes: counted exactly, and as the papers write it.

Only matrix multiplications are counted, two operations for each multiply-add, as everybody counts (and as PyTorch's
`FlopCounterMode` does). Norms, softmax, GELU and the optimizer are a fraction of a percent of the operations in a model
of any size, though not of its time.

Lesson 00 opens this module.
"""

from __future__ import annotations

from course_lib.model.gpt import GPTConfig
from course_lib.model.zoo import Architecture
from course_lib.predict.params import Shape, config_of, kv_heads_of
from course_lib.units import Flops


def forward_flops(shape: Shape, batch_size: int, seq: int) -> Flops:
    """FLOPs of one forward pass: `layers` times a block, and the head.

    For GPT-2's shape this is B·(l·(24·s·d² + 4·s²·d) + 2·s·d·V). Attention counts all s² scores: a causal mask hides
    half of them, but they are computed first.

    Raises:
        ValueError: `shape` has relative positions, whose own multiplications this formula does not know.
    """
    config = config_of(shape)
    head = 2 * batch_size * seq * config.width * config.vocab_size
    return Flops(config.layers * block_flops(config, batch_size, seq) + head)


def step_flops(shape: Shape, batch_size: int, seq: int, recompute: bool = False) -> Flops:
    """FLOPs of a training step: forward, and a backward pass of twice as many.

    Each multiplication of the forward pass has two in the backward pass, one for the gradient of each factor. There is
    no exception at the first layer: its input is not data but an embedding, which wants a gradient too. The optimizer's
    step has no matrix multiplication.

    Args:
        shape: a config, or a row of the zoo.
        batch_size: sequences in the batch.
        seq: tokens in a sequence.
        recompute: whether every block runs forward a second time before its backward pass (full activation
            recomputation). The head does not. PyTorch's `checkpoint` is a little cheaper: it stops when it has what it
            needs, before a block's last multiplication, unless told otherwise by `set_checkpoint_early_stop(False)`.

    Raises:
        ValueError: `shape` has relative positions.
    """
    config = config_of(shape)
    again = config.layers * block_flops(config, batch_size, seq) if recompute else 0
    return Flops(3 * forward_flops(config, batch_size, seq) + again)


def block_flops(config: GPTConfig | Architecture, batch_size: int, seq: int) -> Flops:
    """FLOPs of one block's forward pass: four projections, scores and their use, two or three MLP matrices."""
    if isinstance(config, Architecture) and config.positions == "relative":
        raise ValueError("relative positions add multiplications of their own; use training_flops(parameters, tokens)")
    tokens = batch_size * seq
    kv_width = kv_heads_of(config) * config.head_width
    projections = 2 * config.width * (2 * config.width + 2 * kv_width)
    scores_and_use = 2 * 2 * seq * config.width
    matrices = 3 if isinstance(config, Architecture) and config.gated else 2
    mlp = 2 * matrices * config.width * config.mlp_width
    return Flops(tokens * (projections + scores_and_use + mlp))


def step_flops_paper(shape: Shape, batch_size: int, seq: int, recompute: bool = False) -> Flops:
    """FLOPs of a training step as the Megatron papers write it, for an MLP four times as wide as the model.

    With recomputation 96·B·s·l·h²·(1 + s/6h + V/16lh) (Narayanan et al. 2021, eq. 3); without it
    72·B·s·l·h²·(1 + s/6h + V/12lh) (Korthikanti et al. 2022, eq. 7). Equal to `step_flops` for such a shape.

    Raises:
        ValueError: the MLP has another width, or the attention is grouped.
    """
    config = config_of(shape)
    if isinstance(config, Architecture) or config.mlp_width != 4 * config.width:
        raise ValueError("this formula holds for a GPT with an MLP of 4 × width; use step_flops for other shapes")
    passes = 4 if recompute else 3
    h, tokens = config.width, batch_size * seq
    blocks = passes * tokens * config.layers * (24 * h * h + 4 * seq * h)
    return Flops(blocks + 6 * tokens * h * config.vocab_size)


def token_flops_palm(shape: Shape, seq: int, parameters: int) -> Flops:
    """FLOPs per trained token as PaLM counts them: 6·N + 12·l·h·(head width)·s (Chowdhery et al. 2022, appendix B).

    Args:
        shape: a config, or a row of the zoo.
        seq: tokens in a sequence.
        parameters: N. Position tables multiply nothing, so leave them out; a tied embedding stays: it is the head.
    """
    config = config_of(shape)
    return Flops(6 * parameters + 12 * config.layers * config.heads * config.head_width * seq)
