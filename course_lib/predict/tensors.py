"""One list of the tensors that a rank holds: parameters, gradients, optimizer state, and those that autograd keeps.

    setup = Setup(zoo.LLAMA3_70B, 32, precision="mixed", tensor=8, pipeline=4, data=4, zero=1)
    predict.rank_tensors(setup, stage=0)[0]      # name, role, layer, elements, element_bytes, axes, parts

All that `predict` says about a rank of many is a sum over this list: `rank_parameters`, `model_states`, `activations`,
`rank_traffic`, `unit_buffers`, the optimizer's births in `peak`. Layers are numbered as in `pipeline.stages`: 0 is the
embeddings, 1 to L are the blocks, L + 1 is the final norm with the head and the loss. Heads, hidden features and the
width of tables are cut over "tensor", experts over "expert", as `parallel` does with our GPT; all else is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import NamedTuple

from course_kit.accounts import CATEGORIES
from course_kit.units import Bytes, Count
from course_lib.model.gpt import GPTConfig
from course_lib.model.zoo import Architecture, ExpertModel, LatentAttention
from course_lib.predict.saved import saved_tensors, starts_segment
from course_lib.predict.setup import Config, Setup, Shape

ROLES = CATEGORIES[:-1]
"""Roles of a listed tensor: the categories of the account but temporaries, which come and go."""
Stage = int | range
"""A pipeline stage: its number, where the blocks are cut evenly, or the numbers of its layers."""
_MOMENTS = {"sgd": (), "momentum": ("momentum",), "adam": ("mean", "variance"), None: ()}  # fp32 numbers a parameter
_WHOLE, _TENSOR, _EXPERT = (), ("tensor",), ("expert", "tensor")  # the mesh axes that cut a parameter


class RankTensor(NamedTuple):
    """A tensor of one rank.

    Attributes:
        name: the parameter's, as the model names it, and its use: "blocks.0.mlp.up.weight.variance".
        role: a category of the memory account.
        layer: the number of its layer.
        elements, element_bytes: of this rank's part, before ZeRO cuts it; bytes of each.
        axes: of model states, the mesh axes whose ranks have other parts of it.
        parts: number of parts into which ZeRO cuts `elements`; a rank has one.
    """

    name: str
    role: str
    layer: int
    elements: int
    element_bytes: int
    axes: tuple[str, ...] = ()
    parts: int = 1


def rank_tensors(setup: Setup, stage: Stage = 0, *roles: str) -> list[RankTensor]:
    """Every tensor of a rank between the forward and the backward pass of a micro-batch, and all model states.

    Activations are those of one micro-batch; a pipeline holds those of `in_flight` at once. `roles` are the wanted ones
    of `ROLES`, by default all. A bare number of parameters has no activations.

    Raises:
        ValueError: no such stage or role; activations that are not counted (`saved_tensors`).
    """
    return [each for each, _ in tally(setup, stage, *roles, fold=False)]


def tally(setup: Setup, stage: Stage = 0, *roles: str, fold: bool = True) -> list[tuple[RankTensor, int]]:
    """The list of `rank_tensors`, with layers that are alike told once: (tensor of the first of them, how many)."""
    if unknown := set(roles) - set(ROLES):
        raise ValueError(f"a tensor's role is one of {', '.join(ROLES)}; not {', '.join(map(repr, unknown))}")
    layers, wanted = stage_layers(setup, stage), roles or ROLES
    told = _alike(setup, layers) if fold else [(layer, 1) for layer in layers]
    kept = saved_tensors(setup, [layer for layer, _ in told], layers) if "activations" in wanted else {}
    found: list[tuple[RankTensor, int]] = []
    for layer, times in told:
        found += [(each, times) for each in _states(setup, layer, layers, wanted)]
        found += [(RankTensor(name, "activations", layer, n, each), times) for name, n, each in kept.get(layer, ())]
    return found


def _alike(setup: Setup, layers: range) -> list[tuple[int, int]]:
    """(the first of them, how many) of layers whose tensors are alike."""
    if isinstance(setup.config, int):
        return [(0, 1)]
    config, blocks, full = setup.shape, blocks_of(setup, layers), setup.recompute == "full"
    alike: dict[object, list[int]] = {}
    if isinstance(config, ExpertModel):
        for layer in blocks:
            starts = full and starts_segment(setup, layer, layers)  # recompute keeps its input
            alike.setdefault((starts, config.has_experts(layer), _crosses(config, layer)), []).append(layer)
    else:
        places = setup.recompute_every if full else 1  # blocks may differ by their place in a segment alone
        alike |= {layer: list(blocks[layer - blocks.start :: places]) for layer in blocks[:places]}
    ends = [[layer] for layer in (0, config.layers + 1) if layer in layers]
    return [(numbers[0], len(numbers)) for numbers in (*alike.values(), *ends)]


def blocks_of(setup: Setup, layers: range) -> range:
    """The blocks among these layers, without embeddings and head."""
    return range(max(1, layers.start), min(layers.stop, setup.shape.layers + 1))


def _states(setup: Setup, layer: int, layers: range, wanted: tuple[str, ...]) -> Iterator[RankTensor]:
    """The model states of one of a rank's layers, role by role."""
    moment_bytes = 2 if setup.precision == "bf16" else 4
    kinds = [
        ("parameters", "", setup.weight_bytes, 3),  # suffix of the name, bytes, the stage of ZeRO that cuts it
        ("gradients", ".grad", setup.gradient_bytes, 2),
        *([("optimizer", ".master", 4, 1)] if setup.precision == "mixed" else []),  # the fp32 copy
        *(("optimizer", f".{moment}", moment_bytes, 1) for moment in _MOMENTS[setup.optimizer]),
    ]
    parameters = list(_parameters(setup, layer, layers))
    for role, suffix, element_bytes, cut_from in kinds:
        if role in wanted:
            for name, n, axes in parameters:
                yield RankTensor(name + suffix, role, layer, n, element_bytes, axes, _parts(setup, axes, cut_from))
    adam_counts = setup.optimizer == "adam" and setup.precision != "mixed" and not setup.zero
    if "optimizer" in wanted and adam_counts and not isinstance(setup.config, int):  # a tensor of its own per parameter
        yield from (RankTensor(f"{name}.step", "optimizer", layer, 1, 4) for name, _, _ in parameters)


def bytes_of(tensors: Iterable[tuple[RankTensor, int]]) -> Bytes:
    """Bytes of all tensors; where ZeRO's parts differ by an element, the mean over the ranks, rounded to a byte."""
    return Bytes(round(sum(Fraction(times * t.elements * t.element_bytes, t.parts) for t, times in tensors)))


def rank_parameters(setup: Setup, stage: Stage = 0) -> Count:
    """Parameters on one rank of a model that is cut over `tensor`, `pipeline` and `expert`; others leave them whole.

    Matrices, tables and the biases of columns have 1/t of their elements on each tensor rank; norms, routers and the
    biases of rows are whole on each. With tied embeddings and several stages, the last one has a copy of the table.
    With `zero=3` a rank has its part of all that between steps (the mean over the `Setup.copies` of each tensor).

    Raises:
        ValueError: as `rank_tensors`.
    """
    held = tally(setup, stage, "parameters")
    return Count(round(sum(Fraction(times * t.elements, t.parts) for t, times in held)))


def parameters(shape: Shape) -> Count:
    """Number of parameters: equal to `sum(p.numel() for p in model.parameters())`, tied weights counted once.

    For GPT-2's shape this is 12·l·d² + 13·l·d + (V + s)·d + 2·d (Radford et al. 2019; Narayanan et al. 2021, eq. 2).
    """
    return rank_parameters(Setup(shape, seq=1))


def stage_layers(setup: Setup, stage: Stage = 0) -> range:
    """The layers of a stage: L/p blocks, with the first stage the embeddings, with the last one norm and head.

    Raises:
        ValueError: there is no such stage or layer, or the blocks do not divide.
    """
    if isinstance(setup.config, int):
        return range(1)
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
            "by costs (pipeline.stages.partition_layers) and give the stage's layers, a range, in place of its number"
        )
    first, each = 1 + stage * (blocks // stages), blocks // stages
    return range(first - (stage == 0), first + each + (stage == stages - 1))  # the ends have a layer more


Whole = tuple[str, int, tuple[str, ...]]
"""A parameter of a model: its name, the elements of all of it, and the axes that cut it."""


def _parameters(setup: Setup, layer: int, layers: range) -> Iterator[Whole]:
    """(name, elements on this rank, axes) of every parameter of one of a rank's layers, in the model's own order."""
    if isinstance(setup.config, int | float):
        yield "parameters", int(setup.config), _WHOLE
        return
    if layer == 0:
        found = _embeddings(setup.shape)
    elif layer == setup.shape.layers + 1:
        found = _end(setup.shape, has_copy=0 in layers)
    else:
        found = ((f"blocks.{layer - 1}.{name}", n, axes) for name, n, axes in _block(setup.shape, layer))
    ranks = {_WHOLE: 1, _TENSOR: setup.tensor, _EXPERT: setup.tensor * setup.expert}
    for name, n, axes in found:
        yield name, n // ranks[axes], axes  # `Setup` has made sure that all divide


def _embeddings(config: Config) -> Iterator[Whole]:
    rows = config.lookup or config.vocab_size if isinstance(config, ExpertModel) else config.vocab_size
    yield "token_embedding.weight", rows * config.width, _TENSOR
    if isinstance(config, GPTConfig) and config.positions == "learned":
        yield "position_embedding.weight", config.context * config.width, _TENSOR


def _end(config: Config, has_copy: bool) -> Iterator[Whole]:
    """Final norm and head; `has_copy`: this rank has the embedding already, which a tied head uses."""
    yield from _norm("final_norm", config)
    if isinstance(config, ExpertModel) and config.two_streams:
        yield from _norm("encoder_final_norm", config)
    if not config.tied:
        yield "head.weight", config.vocab_size * config.width, _TENSOR
    elif not has_copy:
        yield "token_embedding.weight", config.vocab_size * config.width, _TENSOR


def _block(config: Config, layer: int) -> Iterator[Whole]:
    yield from _norm("attention_norm", config)
    if isinstance(config, GPTConfig):
        yield from _linear("attention.qkv", config.width, 3 * config.width, config.bias, _TENSOR)
        yield from _linear("attention.out", config.width, config.width, config.bias, _WHOLE)
    else:
        yield from _attention("attention", config)
    if isinstance(config, ExpertModel) and _crosses(config, layer):
        yield from _norm("cross_attention_norm", config)
        yield from _attention("cross_attention", config)
    yield from _norm("mlp_norm", config)
    if isinstance(config, GPTConfig):
        yield from _linear("mlp.up", config.width, config.mlp_width, config.bias, _TENSOR)
        yield from _linear("mlp.down", config.mlp_width, config.width, config.bias, _WHOLE)
    elif isinstance(config, Architecture):
        yield from _mlp("mlp", config.width * config.mlp_width, config.gated, _TENSOR)
    elif config.has_experts(layer):
        yield "router.weight", config.width * config.experts, _WHOLE
        if config.router_bias:
            yield "router.bias", config.experts, _WHOLE
        one = config.width * config.expert_hidden
        yield from _mlp("experts", config.experts * one, config.gated, _EXPERT)
        if config.shared:
            yield from _mlp("shared_experts", config.shared * one, config.gated, _TENSOR)
    else:
        yield from _mlp("mlp", config.width * config.dense_hidden, config.gated, _TENSOR)


def _crosses(config: ExpertModel, layer: int) -> bool:
    """Whether a block looks at an encoder, too: the decoder's, which come last."""
    return config.two_streams and layer > config.layers // 2


def _norm(name: str, config: Config) -> Iterator[Whole]:
    yield f"{name}.weight", config.width, _WHOLE
    if isinstance(config, GPTConfig) and config.norm == "layernorm" and config.bias:
        yield f"{name}.bias", config.width, _WHOLE


def _linear(name: str, inputs: int, outputs: int, bias: bool, of_bias: tuple[str, ...]) -> Iterator[Whole]:
    yield f"{name}.weight", inputs * outputs, _TENSOR
    if bias:
        yield f"{name}.bias", outputs, of_bias


def _mlp(name: str, matrix: int, gated: bool, axes: tuple[str, ...]) -> Iterator[Whole]:
    for part in ("gate", "up", "down") if gated else ("up", "down"):
        yield f"{name}.{part}.weight", matrix, axes


def _attention(name: str, config: Architecture | ExpertModel) -> Iterator[Whole]:
    """Attention's matrices, without biases; narrow projections and their norms are whole on each tensor rank."""
    width, a = config.width, config.attention
    if isinstance(a, LatentAttention):
        yield f"{name}.q_down.weight", width * a.query_rank, _WHOLE
        yield f"{name}.q_norm.weight", a.query_rank, _WHOLE
        yield f"{name}.q_up.weight", a.query_rank * a.heads * (a.plain + a.turned), _TENSOR
        yield f"{name}.kv_down.weight", width * (a.kv_rank + a.turned), _WHOLE
        yield f"{name}.kv_norm.weight", a.kv_rank, _WHOLE
        yield f"{name}.kv_up.weight", a.kv_rank * a.heads * (a.plain + a.value), _TENSOR
        yield f"{name}.out.weight", a.heads * a.value * width, _TENSOR
        return
    for part, heads in (("q", a.heads), ("k", a.kv_heads), ("v", a.kv_heads), ("out", a.heads)):
        yield f"{name}.{part}.weight", width * heads * a.head_width, _TENSOR
    if isinstance(config, Architecture) and config.positions == "relative":
        yield f"{name}.relative.weight", width * width, _TENSOR


def _parts(setup: Setup, axes: tuple[str, ...], cut_from: int) -> int:
    """Number of parts into which ZeRO, from stage `cut_from` on, cuts a tensor: the ranks that hold the same one."""
    return setup.copies("expert" in axes) if setup.zero >= cut_from else 1
