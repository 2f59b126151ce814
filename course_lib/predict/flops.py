"""Floating-point operations of a step, on all ranks together: counted exactly, and as the papers write them.

Only matrix multiplications are counted, two operations for each multiply-add, as in PyTorch's `FlopCounterMode`. Norms,
softmax, GELU and the optimizer are a fraction of a percent of the operations, though not of the time. A GPT or an
`Architecture` without relative positions is counted; these formulas refuse all others.
"""

from __future__ import annotations

from course_kit.units import Flops
from course_lib.model.zoo import ExpertModel
from course_lib.predict.setup import Setup
from course_lib.predict.tensors import tally


def forward_flops(setup: Setup) -> Flops:
    """FLOPs of the forward pass over the whole batch: `layers` times a block, and the head.

    For GPT-2's shape this is B·(l·(24·s·d² + 4·s²·d) + 2·s·d·V). Attention counts all s² scores: a causal mask hides
    half of them, but they are computed first.
    """
    config = setup.shape
    head = 2 * setup.batch_size * setup.seq * config.width * config.vocab_size  # 2: a product and a sum
    return Flops(config.layers * block_flops(setup) + head)


def step_flops(setup: Setup) -> Flops:
    """FLOPs of a training step: forward, a backward pass of twice as many, and the recomputed ones.

    Each multiplication of the forward pass has two in the backward pass: one for the gradient of each factor. So has
    the first layer, since the embedding wants a gradient. The optimizer's step has no matrix multiplication. Attention
    counts as if written out: a fused or tiled one multiplies its scores a second time, a tiled one skips hidden tiles.
    """
    return Flops(3 * forward_flops(setup) + recomputed_flops(setup))  # forward, and a gradient for each of two factors


def recomputed_flops(setup: Setup) -> Flops:
    """FLOPs that recompute adds to a step: whole blocks, or the two products around the scores (4·b·s²·h a layer).

    The head does not run again. PyTorch's `checkpoint` is a little cheaper than "full": it stops with the last needed
    tensor, before a block's last multiplication, unless told otherwise by `set_checkpoint_early_stop(False)`.

    Source: counted, as `measure.flops` counts. Korthikanti et al. 2022 print three times as much for the selective one:
    their eq. 8 less eq. 7, 12·b·s²·h a layer, has these products' backward pass, too.
    """
    config = setup.shape
    scores = 4 * setup.batch_size * setup.seq**2 * config.heads * config.head_width  # q·k and weights·v, 2 each
    a_layer = {"none": 0, "selective": scores, "full": block_flops(setup)}
    return Flops(config.layers * a_layer[setup.recompute])


def block_flops(setup: Setup) -> Flops:
    """FLOPs of one block's forward pass: the products with its matrices (`rank_tensors`), scores, and their use."""
    config = setup.shape
    if isinstance(config, ExpertModel):
        raise ValueError(f"{config.name} has experts: a token meets few of them: expert_parameters(model).active")
    setup.refuse_uncounted()
    listed = tally(Setup(config, seq=1), range(1, 2), "parameters")
    matrices = sum(each.elements for each, _ in listed if each.name.endswith(".weight") and "norm" not in each.name)
    scores_and_use = 2 * 2 * setup.seq * config.width  # each token meets seq others, twice
    return Flops(setup.batch_size * setup.seq * (2 * matrices + scores_and_use))
