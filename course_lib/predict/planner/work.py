"""The amounts that a step of each layout holds, computes and sends, as NumPy arrays over many layouts: all counted.

One call of `work` asks the list of a rank's tensors (`predict.tensors`) once for each kind of layer and each way to cut
it, some hundred times for 10^5 plans; the rest is arithmetic on arrays of one number for each layout, n in the shapes.
The seconds of these amounts on a machine, and its extra bytes, are in `cost.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Real

from course_lib.model.zoo import ExpertModel
from course_lib.predict.memory import model_states
from course_lib.predict.rank_traffic import summed
from course_lib.predict.setup import Config, Setup, attention_of
from course_lib.predict.tensors import tally

Numbers = Int[np.ndarray, " n"]
Amounts = Real[np.ndarray, " n"]
Stages = Real[np.ndarray, "n stages"]
"""An amount on the first stage, on one in the middle, and on the last: nowhere else can the most be held."""


class Layouts(NamedTuple):
    """Ways to train one model, a number for each layout in every field."""

    tensor: Numbers
    pipeline: Numbers
    data: Numbers
    context: Numbers
    expert: Numbers
    zero: Numbers
    micro_batch: Numbers  # sequences
    chunks: Numbers  # stages on each pipeline rank; above 1 the schedule is interleaved
    full: Numbers  # 1 where whole blocks are recomputed
    batch: Numbers  # sequences of a step, on all ranks

    @property
    def micro_batches(self) -> Numbers:
        """Forward and backward passes of a step on each rank."""
        return np.maximum(1, -(-self.batch // (self.data * self.expert * self.micro_batch)))

    def take(self, which: np.ndarray) -> Layouts:
        """The layouts of these indices, or where this mask is true."""
        return Layouts(*(field[which] for field in self))


class Work(NamedTuple):
    """Amounts of a step on one rank; those of blocks are for one block and one micro-batch, both passes."""

    layouts: Layouts
    blocks: Stages  # blocks of the first stage, the fullest, the last
    layers: Amounts  # blocks of the whole model
    products: Amounts  # FLOPs of a block's matrix products
    scores: Amounts  # FLOPs of its attention, all pairs counted
    head: Amounts  # FLOPs of the head
    passes: Amounts  # of 3: a forward pass and a backward pass of twice its length; 4 with recompute
    width: Amounts  # features of the stream over tensor ranks: the narrow side of a product
    block_bytes: Amounts  # that autograd would keep of a block without recompute
    tensor_bytes: Amounts  # that a block sends over the tensor axis
    context_bytes: Amounts  # keys, values and their gradients round the ring
    expert_bytes: Amounts  # rows to experts and back
    pipeline_bytes: Amounts  # of one micro-batch to the next stage and back
    data_bytes: Amounts  # of a step over data and context ranks, which have the same weights
    tokens: Amounts  # in the model at once
    parameters: Stages  # that the rank computes with, before ZeRO
    states: Stages  # bytes of weights, gradients and optimizer
    kept: Stages  # bytes that autograd keeps of all micro-batches in flight
    logits: Stages  # elements of the head's result, where the stage has one
    whole: Stages  # elements of the stream, one for each block in flight, that are not cut over tensor ranks
    passing: Stages  # bytes that come and go: weights of `unit_buffers`, a block that is recomputed, a gathered stream


def work(
    config: Config, seq: int, layouts: Layouts, blocks: np.ndarray | None = None, sequence_parallel: bool = True
) -> Work:
    """Everything that can be counted about these layouts.

    Args:
        config: the model; tokens of a sequence are `seq`.
        layouts: legal ones (`plan.legal`); `Setup` refuses others.
        blocks: of the first, the fullest and the last stage; by default an even cut, in which the ends have
            fewer (Llama 3 405B has 126 blocks on 16 stages, a block less at both ends).
        sequence_parallel: whether tensor ranks also cut the stream between products; never with experts.

    Raises:
        ValueError: as `Setup` and `rank_tensors`.
    """
    each = layouts
    blocks = even_blocks(config.layers, each.pipeline) if blocks is None else blocks.copy()
    blocks[:, 1] = np.where(each.pipeline <= 2, blocks[:, 2], blocks[:, 1])  # without a middle: the last once more
    share = sum(_with_experts(config)) / config.layers  # of the blocks: those with experts
    sequence_parallel = sequence_parallel and not share
    kinds, kept, one_block = _of_kinds(config, seq, each, sequence_parallel)
    stages = _counts(config, each, blocks)  # (n, stage, kind)
    m, p, v = each.micro_batches, each.pipeline, each.chunks
    last = np.stack([0 * p, np.minimum(1, p - 1), p - 1], 1)
    flight = np.where(v[:, None] > 1, 2 * (p[:, None] - 1 - last) + ((v - 1) * p + 1)[:, None], p[:, None] - last)
    flight = np.minimum((m * v)[:, None], flight)
    # Interleaved, as `rank_memory` plays it: of stages of like blocks, the first has 2p micro-batches at the moment
    # when most are in flight; from the last one, with the head, each goes back at once.
    first, head = (np.where(v > 1, n, flight.T).T for n in (np.minimum(m, 2 * p), 1))
    held = np.einsum("nsk,nsk,nk->ns", np.stack([first, *2 * [flight / v[:, None]], head], 2), stages, kept)
    elements = np.einsum("nsk,nkg->nsg", stages, kinds)  # (n, stage, shared or expert)
    elements[..., 0] -= np.where((p == 1) & config.tied, config.vocab_size * config.width // each.tensor, 0)[:, None]
    states = np.einsum("nsg,ng->ns", elements, _state_bytes(each))
    h, a, t, c, passes = config.width, attention_of(config), each.tensor, each.context, 3.0 + each.full
    tokens = each.micro_batch * seq / c
    top_k, experts = (config.top_k, config.experts) if isinstance(config, ExpertModel) else (0, 1)
    shared, of_experts = ((1 - share) * kinds[:, 1] + share * kinds[:, 2]).T  # elements of a mean block
    products = 2 * passes * tokens * (shared + of_experts * (top_k / experts * each.expert))  # a token meets few
    stream = 2 * tokens * h  # bytes
    forward, backward = np.mean([np.sum([*summed(config, 1 + n)], 0) for n in range(config.layers)], 0)
    a_block = kinds[:, None, 1:3].sum(3)  # elements of either kind, for each stage
    rest, largest = elements.sum(2) - (stages[..., 1:3] * a_block).sum(2), ((stages[..., 1:3] > 0) * a_block).max(2)
    passing = np.where(each.zero == 3, 2 * (rest + 2 * largest).T, 0.0) + np.where(each.full == 1, one_block, 0.0)
    if sequence_parallel:
        passing += 2 * stream * (1 - 1 / t)  # the whole stream for a product, and its gradient
    return Work(
        layouts, blocks.astype(float), np.full(len(p), float(config.layers)), products,
        scores=2 * passes * tokens * seq * (a.kv_features * a.heads // a.kv_heads) / t,
        head=6 * tokens * config.vocab_size * h / t,
        passes=passes,
        width=h / t,
        block_bytes=one_block,
        tensor_bytes=((1 + each.full) * forward + backward) * 2 * (t - 1) / t * 2 * tokens,
        context_bytes=stream / h * a.kv_features / t * np.where(c > 1, 3 * c - 2 + each.full * (c - 1), 0),
        expert_bytes=(4 + 2 * each.full) * top_k * share * stream * (each.expert - 1) / each.expert,
        pipeline_bytes=2 * v * stream / (1 if share else t) * (p > 1),
        data_bytes=_data_bytes(each, elements.max(1), m),
        tokens=tokens,
        parameters=elements.sum(2),
        states=states,
        kept=held,
        logits=stages[:, :, 3] * (tokens * config.vocab_size / t)[:, None],
        whole=flight / v[:, None] * stages[:, :, 1:3].sum(2) * (tokens * h * (1 - 1 / t) * (1 - each.full))[:, None],
        passing=passing.T,
    )  # fmt: skip


def even_blocks(layers: int, pipeline: Numbers) -> np.ndarray:
    """Blocks of the first stage, the fullest, and the last, where the ends have fewer: (n, 3)."""
    most = -(-layers // pipeline)
    missing = most * pipeline - layers
    ends = np.where(missing >= pipeline, 0, most)  # more missing than stages: no such cut
    first, last = ends - (missing > 1), ends - (missing > 0)
    return np.stack([np.where(pipeline == 1, layers, first), most, np.where(pipeline == 1, layers, last)], 1)


def _of_kinds(config: Config, seq: int, each: Layouts, sequence: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Elements (n, kind, shared or expert), kept bytes (n, kind) of embeddings, dense block, expert block, head."""
    ways, which = np.unique(
        np.stack([each.tensor, each.context, each.expert, each.micro_batch, each.full], 1), axis=0, return_inverse=True
    )
    found = [_one_way(config, seq, way.tolist(), sequence) for way in ways]
    elements, kept, running = (np.array(column, float)[which.ravel()] for column in zip(*found))
    return elements, kept, running


def _one_way(
    config: Config, seq: int, way: list[int], sequence: bool
) -> tuple[list[tuple[float, float]], list[float], float]:
    """Elements shared and of experts, and bytes kept, of each kind; and bytes of a block while it runs again."""
    tensor, context, expert, rows, full = way
    setup = Setup(
        config, rows * expert, seq, micro_batch=rows, precision="mixed", tensor=tensor, context=context, expert=expert,
        sequence_parallel=sequence and tensor > 1, recompute="full" if full else "none",
    )  # fmt: skip
    last = config.layers + 1
    with_experts = _with_experts(config)
    numbers = [0, *(with_experts.index(kind) + 1 if kind in with_experts else None for kind in (False, True)), last]
    elements, kept = [], []
    for number in numbers:
        listed = [] if number is None else tally(setup, range(number, number + 1), "parameters", "activations")
        weights = [tensor for tensor, _ in listed if tensor.role == "parameters"]
        own = [t for t, _ in listed if t.role == "activations" and not t.name.startswith("batch.")]
        cut = sum(each.elements for each in weights if "expert" in each.axes)
        elements.append((sum(each.elements for each in weights) - cut, cut))
        kept.append(sum(each.elements * each.element_bytes for each in own))
    running = _one_way(config, seq, [*way[:4], 0], sequence)[2] if full else max(kept[1:3])
    return elements, kept, running


def _counts(config: Config, each: Layouts, blocks: np.ndarray) -> np.ndarray:
    """Numbers of layers of each kind in the first stage, one in the middle and the last: (n, stage, kind)."""
    p = each.pipeline
    before = np.cumsum([0, *_with_experts(config)])  # expert blocks among the first so many
    start = np.stack([0 * p, np.minimum(blocks[:, 0], config.layers - blocks[:, 1]), config.layers - blocks[:, 2]], 1)
    experts = before[np.clip(start + blocks, 0, config.layers)] - before[np.clip(start, 0, config.layers)]
    first = np.stack([1 + 0 * p, p == 1, p == 1], 1)
    last = np.stack([p == 1, p <= 2, 1 + 0 * p], 1)
    return np.stack([first, blocks - experts, experts, last], 2).astype(float)


def _state_bytes(each: Layouts) -> np.ndarray:
    """Bytes of states for each element that is shared, and that is an expert's: (n, 2), with Adam and fp32 sums."""
    one = model_states(Setup(1, precision="mixed", gradients="fp32"))  # of one parameter: 2, 4 and 12 bytes
    parts = [np.where(each.zero >= stage, _groups(each).T, 1).T for stage in (1, 2, 3)]
    return one.optimizer / parts[0] + one.gradients / parts[1] + one.parameters / parts[2]


def _data_bytes(each: Layouts, elements: np.ndarray, m: Numbers) -> Amounts:
    """Bytes as in `data_traffic`, with gradients of 4 bytes, weights of 2, of shared elements and experts' (n, 2).

    Without ZeRO, too, context ranks sum once a step with the data ranks, as Megatron-LM does, in whose runs they are;
    `rank_traffic` has the sums of each pass that `ContextParallelGPT` makes.
    """
    groups, by_stage = _groups(each), [8 + 0 * m, 6 + 0 * m, 4 * m + 2, 8 * m]
    return np.choose(each.zero, by_stage) * (elements * (groups - 1) / groups).sum(1)


def _groups(each: Layouts) -> np.ndarray:
    """`Setup.copies`: ranks with the same weights, of all that is no expert and of experts (n, 2)."""
    return np.stack([each.data * each.context * each.expert, each.data * each.context], 1)


def _with_experts(config: Config) -> list[bool]:
    """Whether a block has experts in place of its MLP, for each block."""
    return [isinstance(config, ExpertModel) and config.has_experts(n) for n in range(1, config.layers + 1)]
