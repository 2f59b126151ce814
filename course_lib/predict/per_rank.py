"""What one rank of many holds: its part of the parameters, and what a micro-batch leaves on it for the backward pass.

    setup = Setup(config, batch_size=8, tensor=2, pipeline=4, micro_batch=1)
    predict.rank_parameters(setup, stage=0)          # of the first stage, which has the embeddings
    predict.rank_activations(setup, stage=0) * predict.in_flight(setup, stage=0)

The parts are those of `parallel.tensor_gpt`, `parallel.stages` and `parallel.context_gpt`. Layers are numbered as
there: 0 is the embeddings, 1 to L are the blocks, L + 1 is the final norm with the head and the loss.
"""

from __future__ import annotations

from course_kit.units import Bytes, Count
from course_lib.model.gpt import GPTConfig
from course_lib.predict.params import parameters
from course_lib.predict.setup import Setup

_WIDE, _INTEGER = 4, 8
"""Bytes of a number of the loss, and of a token."""
Stage = int | range
"""A pipeline stage: its number, where the blocks are cut evenly, or the numbers of its layers."""


def stage_layers(setup: Setup, stage: Stage = 0) -> range:
    """The layers of a stage: L/p blocks, with the first stage the embeddings, with the last one norm and head.

    Raises:
        ValueError: there is no such stage or layer, or the blocks do not divide.
    """
    blocks, stages = setup.shape.layers, setup.pipeline
    if isinstance(stage, range):
        if not stage or stage.step != 1 or stage.start < 0 or stage.stop > blocks + 2:
            raise ValueError(f"layers={stage}: give a range within 0 (embeddings) to {blocks + 1} (norm and head)")
        return stage
    if not 0 <= stage < stages:
        raise ValueError(f"stage={stage}: with pipeline={stages} there are stages 0 to {stages - 1}")
    if blocks % stages:
        raise ValueError(
            f"{blocks} blocks do not split into pipeline={stages} equal parts: choose a number that divides, or cut "
            "by costs (parallel.stages.cut) and give the stage's layers, a range, in place of its number"
        )
    first, each = 1 + stage * (blocks // stages), blocks // stages
    return range(first - (stage == 0), first + each + (stage == stages - 1))


def rank_parameters(setup: Setup, stage: Stage = 0) -> Count:
    """Parameters on one rank of a GPT that is cut over `tensor` and `pipeline`; data and context leave them whole.

    Matrices, tables and the biases of columns have 1/t of their elements on each tensor rank; norms and the biases of
    rows are whole on each. With tied embeddings and several stages, the last one has a copy of the table. With `zero=3`
    a rank has 1/d of all that between steps (the mean over the d data ranks).

    Raises:
        ValueError: not a `GPTConfig`, a width that does not divide; or as `stage_layers`.
    """
    return Count(round(sum(rank_parameter_elements(setup, stage)) / shards(setup, 3)))


def shards(setup: Setup, stage: int) -> int:
    """Into how many parts the data ranks cut what ZeRO cuts from `stage` on: state 1, gradients 2, parameters 3."""
    return setup.data if setup.zero >= stage else 1


def rank_parameter_elements(setup: Setup, stage: Stage = 0) -> list[int]:
    """Elements of every parameter tensor of one rank, which ZeRO leaves whole in a pass. Errors: `rank_parameters`."""
    config, t, layers = _divided(setup), setup.tensor, stage_layers(setup, stage)
    width, hidden, last = config.width, config.mlp_width, config.layers + 1
    table = config.vocab_size * width // t
    norm = whole_norm(config)
    matrices = [n * width // t for n in (3 * width, width, hidden, hidden)]
    biases = [3 * width // t, hidden // t, width, width] if config.bias else []
    found: list[int] = []
    for layer in layers:
        if layer == 0:
            found += [table, *([config.context * width // t] if config.positions == "learned" else [])]
        elif layer == last:
            found += [*norm, *([] if config.tied and 0 in layers else [table])]
        else:
            found += [*norm, *norm, *matrices, *biases]
    return found


def parameters_of_rank(setup: Setup, stage: Stage, formula: str) -> tuple[int, int]:
    """For formulas: parameters and parameter tensors of one rank before ZeRO cuts them; 0 tensors if nobody knows.

    Raises:
        ValueError: the model is split over tensor or pipeline ranks and is not a `GPTConfig`; or as `rank_parameters`.
    """
    if isinstance(setup.config, GPTConfig):
        elements = rank_parameter_elements(setup, stage)
        return sum(elements), len(elements)
    setup.refuse_parallel(f"{formula} without a GPTConfig", "data", "context", "zero", "sequence_parallel")
    return (int(setup.config), 0) if isinstance(setup.config, int | float) else (parameters(setup.config), 0)


def whole_norm(config: GPTConfig) -> list[int]:
    """Elements of a norm's parameters, which every tensor rank has whole."""
    return [config.width] * (2 if config.norm == "layernorm" and config.bias else 1)


def rank_activations(setup: Setup, stage: Stage = 0) -> Bytes:
    """Bytes that autograd keeps on one rank between the forward and the backward pass of one micro-batch, exactly.

    With t tensor ranks and sizes in elements, as in `activations` (which is the same for one rank), a block keeps

        tensor                     4·BSD + 4·BS  +  (4·BSD + 2·BSF + BHSS) / t
        tensor and sequence        (4·BSD + 4·BS + 4·BSD + 2·BSF + BHSS) / t
        context, c ranks           (8·BSD + 2·BSF + BHS + 4·BS) / c

    and one byte for each entry of the causal mask, SS, where scores are written out: in a ring nobody holds scores or
    mask, only the logarithm of each row's sum. The last stage keeps 2·BSD + 2·BS + BSV more: the BSV whole on every
    tensor rank, or 1/t of them with `sequence_parallel`. With a single sequence, or a single head on the rank, q, k and
    v stay in one piece, which is another BSD / t (but for a ring, which keeps them so in any case).

    What a stage returns is not counted, nor are tokens and targets, which are there anyway; where a rank makes a copy
    of its own of them (sequence and context parallelism), that copy is.

    ZeRO changes nothing of it: weights are no activations, whoever holds them.

    Raises:
        ValueError: not a `GPTConfig`, or one with RMSNorm, rotary positions, fused attention or dropout; recompute; a
            size that does not divide; context together with tensor or pipeline parallelism.
    """
    config, layers = _counted(setup), stage_layers(setup, stage)
    last = config.layers + 1
    blocks = sum(0 < layer < last for layer in layers)
    ends = (_embeddings(setup) if 0 in layers else 0) + (_head(setup) if last in layers else 0)
    return Bytes(blocks * _block(setup) + ends)


def _block(setup: Setup) -> int:
    config, element, t, c = setup.gpt, setup.weight_bytes, setup.tensor, setup.context
    tokens = setup.rows * setup.seq
    stream, hidden = tokens * config.width, tokens * config.mlp_width
    if c > 1:
        return element * (8 * stream + 2 * hidden + tokens * config.heads + 4 * tokens) // c
    scores = tokens * config.heads * setup.seq
    in_one_piece = setup.rows == 1 or config.heads == t
    inside = (4 + in_one_piece) * stream + 2 * hidden + scores
    return element * (_between(setup, 4 * stream + 4 * tokens) + inside // t) + setup.seq**2


def _embeddings(setup: Setup) -> int:
    """The numbers of the positions, and the tokens where a rank copies its own."""
    own_tokens = setup.rows * setup.seq // setup.context if setup.context > 1 else 0
    return _INTEGER * (setup.seq // setup.context + own_tokens)


def _head(setup: Setup) -> int:
    """Of the norm: its input and statistics, its output or this rank's features of it. Of the loss: the
    log-probabilities in 32 bits, the number that the mean divides by, and the targets where a rank copies its own."""
    config, c = setup.gpt, setup.context
    tokens = setup.rows * setup.seq
    stream = tokens * config.width
    normed = setup.weight_bytes * (_between(setup, stream + 2 * tokens) + stream // setup.tensor) // c
    own = _between(setup, tokens) // c
    targets = _INTEGER * own if own < tokens else 0
    return normed + _WIDE * own * config.vocab_size + _WIDE + targets


def _between(setup: Setup, elements: int) -> int:
    """What a rank has of a tensor between the split products: all of it, or its part of the sequence."""
    return elements // setup.tensor if setup.sequence_parallel else elements


def _counted(setup: Setup) -> GPTConfig:
    config = _divided(setup)
    architecture = (config.norm, config.positions, config.dropout)
    if architecture != ("layernorm", "learned", 0.0) or (config.attention == "fused" and setup.context == 1):
        raise ValueError(
            f"{config}: counted are LayerNorm, learned positions, attention written out and no dropout only"
        )
    if setup.recompute != "none":
        raise ValueError(
            f"recompute={setup.recompute!r}: counted is what is kept without; activations_paper has a rule for it"
        )
    refuse_mixed_context(setup)
    return config


def refuse_mixed_context(setup: Setup) -> None:
    """Raise a ValueError if context parallelism meets tensor or pipeline parallelism: no GPT of ours is cut so."""
    if setup.context > 1 and (setup.tensor, setup.pipeline) != (1, 1):
        raise ValueError(
            f"context={setup.context} with tensor={setup.tensor}, pipeline={setup.pipeline}: counted is context "
            "parallelism by itself, or with data parallelism"
        )


def _divided(setup: Setup) -> GPTConfig:
    """The config, if its sizes divide over the tensor ranks (a `Setup` sees to the heads)."""
    config, t = setup.gpt, setup.tensor
    sizes = {"width": config.width, "mlp_width": config.mlp_width}
    if setup.sequence_parallel:
        sizes["seq"] = setup.seq
    if odd := {name: size for name, size in sizes.items() if size % t}:
        raise ValueError(f"{odd} do not split into tensor={t} equal parts")
    return config
