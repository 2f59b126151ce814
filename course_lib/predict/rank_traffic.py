"""The bytes that a rank sends in a training step, by axis and operation: tensor, context, pipeline, expert and data.

    sent = predict.rank_traffic(Setup(config, batch_size=8, tensor=2, data=2))
    sent["tensor"].modelled_bytes["all_reduce"], sent["data"].total_bytes

First the calls are listed, then all are priced at once. The ranks are those of `parallel.tensor_gpt`,
`parallel.context`, `pipeline.stages`, `parallel.experts` and `parallel.data`: their embedding and head are cut by
width, which other libraries do otherwise; the blocks' part is everybody's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from course_kit.accounts import TrafficAccount
from course_kit.units import Bytes, Count
from course_lib.model.zoo import ExpertModel, LatentAttention
from course_lib.predict.setup import Config, Setup, attention_of, positive
from course_lib.predict.tensors import RankTensor, Stage, blocks_of, stage_layers, tally
from course_lib.predict.traffic import OPERATIONS, Collective, CriticalPath

Tally = list[tuple[RankTensor, int]]
_LOSS, COUNTER = 4, 8
"""Bytes of the loss, one number in 32 bits; and of a count of tokens for an expert."""
_NOTHING = Collective(Bytes(0), Count(0), CriticalPath(Count(0), Bytes(0)))


class Call(NamedTuple):
    """A call of a communication operation, as often as a step makes it."""

    axis: str  # of the mesh
    operation: str  # a name in `traffic.OPERATIONS`, or "send"
    n_bytes: int  # of the whole array, or of all micro-batches' arrays together
    times: int  # calls in a step
    ranks: int  # of the group


def rank_traffic(setup: Setup, stage: Stage = 0) -> dict[str, TrafficAccount]:
    """Bytes that a rank sends in one step, all its micro-batches together, along each axis of more than one rank.

    With n bytes of the stream of one micro-batch, t tensor, c context and d data ranks, and m micro-batches:

    - "tensor", for each block: 4 all-reduces of n (Shoeybi et al. 2019, §3); with `sequence_parallel` 6 all-gathers
      and 4 reduce-scatters of n, a quarter more in all, since inputs are gathered a second time for the weights'
      gradients (Korthikanti et al. 2022, §4.2.2). Besides, the first and the last stage gather or exchange the
      stream where embedding and head are cut by width, the last one sums the logits, and with `sequence_parallel` the
      gradients of uncut parameters are summed. Of latent attention the gradients of both narrow vectors are
      summed, not the stream's; of experts all their rows, `top_k` for each token.
    - "context", for each block: keys and values and their gradients around the ring, 2n(3c-2)/c where they are as wide
      as the stream; and without ZeRO, in each backward pass (`ContextParallelGPT`), the gradients of the parameters.
    - "pipeline": n (n/t with `sequence_parallel`) to the next stage and back, and the tied table's gradient between the
      first and the last one. The bytes depend on no schedule; each cut of the model is passed twice.
    - "expert": as `expert_traffic`, for each layer of experts, but for gradients.
    - "data": the gradients' all-reduce, or with ZeRO the collectives of `data_traffic`, over all ranks with the same
      parameters: `data` · `expert` for all that is no expert; with ZeRO times `context`.

    With `recompute="full"` a block's forward pass sends twice; the selective one sends nothing again. Where parts
    differ, it is the mean over the ranks, rounded to a byte.

    Raises:
        ValueError: as `rank_tensors`; relative positions, an encoder with a decoder.
    """
    setup.refuse_uncounted()
    layers, parameters = stage_layers(setup, stage), tally(setup, stage, "parameters")
    calls = [
        *(_sequence if setup.sequence_parallel else _tensor)(setup, layers, parameters),
        *_context(setup, layers, parameters), *_pipe(setup, layers, parameters), *_expert(setup, layers),
        *_data(setup, parameters),
    ]  # fmt: skip
    return priced(calls)


def priced(calls: Iterable[Call]) -> dict[str, TrafficAccount]:
    """Bytes by axis and operation of these calls, along each axis of more than one rank."""
    sent: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for axis, operation, n_bytes, times, ranks in calls:
        if ranks > 1:
            each = n_bytes if operation == "send" else OPERATIONS[operation](n_bytes, ranks).bytes
            sent[axis][operation] += times * each
    return {
        axis: TrafficAccount(modelled_bytes={name: Bytes(n) for name, n in by_name.items() if n})
        for axis, by_name in sent.items()
    }


def data_traffic(setup: Setup, stage: Stage = 0, buckets: int = 1) -> dict[str, Collective]:
    """Traffic of one rank along the data axis in a step: operation → all its bytes and messages.

    With n ranks, Ψ parameters (those of this rank's place in tensor and pipeline), w bytes of a weight and g of a
    gradient, and m micro-batches (Rajbhandari et al. 2020, §7, where m = 1 and w = g):

        zero=0    all-reduce of gΨ                                                  2Ψ · (n-1)/n elements
        zero=1    reduce-scatter of gΨ, all-gather of wΨ                            2Ψ · (n-1)/n
        zero=2    reduce-scatter of gΨ for each micro-batch, all-gather of wΨ       (m+1)Ψ · (n-1)/n
        zero=3    for each micro-batch a reduce-scatter of gΨ, and an all-gather    3mΨ · (n-1)/n
                  of wΨ in the forward pass and in the backward pass

    Stages 0 and 1 add the micro-batches' gradients up first, on each rank. Zeros that fill a bucket up are not counted,
    at most n-1 elements of each; nor is the all-reduce of 4 bytes for each parameter tensor with which
    `ZeroOptimizer` learns which parameters were used. Recompute of whole blocks gathers nothing again: a block's
    weights are there while it runs backward. n are the data ranks, for all that is no expert times the expert ranks,
    and in ZeRO times the context ranks, which have the same weights (as Megatron-LM's and FSDP's do).

    The weights are cut into `buckets`, each with messages of its own.

    Raises:
        ValueError: no bucket; as `rank_tensors`.
    """
    positive(buckets=buckets)
    found: dict[str, Collective] = {}
    for _, operation, n_bytes, times, ranks in _data(setup, tally(setup, stage, "parameters")):
        each, before = OPERATIONS[operation](n_bytes, ranks), found.get(operation, _NOTHING)
        sent, messages = before.bytes + times * each.bytes, before.messages + times * buckets * each.messages
        found[operation] = Collective(sent, messages, CriticalPath(messages, sent))  # all wait for what each sends
    return found


# ---- the calls of a step -------------------------------------------------------------------------------------------


def _tensor(setup: Setup, layers: range, _: Tally) -> Iterator[Call]:
    """Calls of tensor ranks that hold the stream whole."""
    stream, of_each, again = _stream(setup), setup.weight_bytes * _tokens(setup), setup.recompute == "full"
    for layer in blocks_of(setup, layers):
        for forward, backward in summed(setup.shape, layer):  # a row product sums forward, a column product backward
            yield Call("tensor", "all_reduce", of_each * forward, 2 if again else 1, setup.tensor)
            yield Call("tensor", "all_reduce", of_each * backward, 1, setup.tensor)
    if 0 in layers:
        yield Call("tensor", "all_gather", stream, 1, setup.tensor)  # the embedding's features, joined
    if setup.shape.layers + 1 in layers:
        yield Call("tensor", "all_gather", stream, 1, setup.tensor)  # the gradient of the head's features, joined
        yield Call("tensor", "all_reduce", _logits(setup), 1, setup.tensor)


def summed(config: Config, layer: int) -> Iterator[tuple[int, int]]:
    """Numbers of each token that the parts of a block sum up in the forward pass, and in the backward pass."""
    width, narrow = config.width, 0
    if isinstance(config, ExpertModel) and isinstance(config.attention, LatentAttention):
        narrow = config.attention.query_rank + config.attention.kv_rank + config.attention.turned
    yield width, narrow or width  # attention
    if isinstance(config, ExpertModel) and config.has_experts(layer):
        yield config.top_k * width, config.top_k * width  # each token's row once for each of its experts
        if config.shared:
            yield width, width
    else:
        yield width, width


def _sequence(setup: Setup, layers: range, parameters: Tally) -> Iterator[Call]:
    """Calls of tensor ranks that cut the stream along the sequence between products."""
    t, stream, has_end = setup.tensor, _stream(setup), setup.shape.layers + 1 in layers
    blocks, again = len(blocks_of(setup, layers)), 2 if setup.recompute == "full" else 0
    whole = _elements([pair for pair in parameters if "tensor" not in pair[0].axes]) * setup.weight_bytes
    yield Call("tensor", "all_gather", stream, (6 + again) * blocks, t)
    yield Call("tensor", "reduce_scatter", stream, (4 + again) * blocks, t)
    # Features to tokens or back, forward and backward:
    yield Call("tensor", "all_to_all", stream // t, 2 * ((0 in layers) + has_end), t)
    yield Call("tensor", "all_reduce", whole + _LOSS * has_end, setup.micro_batches, t)
    if has_end:
        yield Call("tensor", "reduce_scatter", _logits(setup), 1, t)
        yield Call("tensor", "all_gather", _logits(setup), 1, t)


def _context(setup: Setup, layers: range, parameters: Tally) -> Iterator[Call]:
    """Keys and values go c - 1 steps in each pass, and their gradients, in the backward pass, c steps; then sums."""
    c, has_end = setup.context, setup.shape.layers + 1 in layers
    steps = 3 * c - 2 + (c - 1 if setup.recompute == "full" else 0)  # (c - 1) + (c - 1) + c, each of n/c of the tokens
    n_bytes = setup.weight_bytes * _tokens(setup) * attention_of(setup.shape).kv_features // setup.tensor
    yield Call("context", "send", n_bytes * steps, len(blocks_of(setup, layers)), c)
    sums = 0 if setup.zero else _gradients(setup, parameters)
    yield Call("context", "all_reduce", sums + _LOSS * has_end, setup.micro_batches, c)


def _pipe(setup: Setup, layers: range, parameters: Tally) -> Iterator[Call]:
    """Forward to the next stage, backward to the one before."""
    neighbours = (0 not in layers) + (setup.shape.layers + 1 not in layers)
    boundary = _stream(setup) // setup.stream_parts  # each tensor rank sends its part
    yield Call("pipeline", "send", boundary, neighbours, setup.pipeline)
    if setup.shape.tied and neighbours == 1:  # the first stage or the last: each has the table
        tables = [pair for pair in parameters if pair[0].name == "token_embedding.weight"]
        yield Call("pipeline", "send", _gradients(setup, tables), 1, setup.pipeline)


def _expert(setup: Setup, layers: range) -> Iterator[Call]:
    """Rows of tokens to the experts and back, in both passes; counts of the rows."""
    config, p = setup.shape, setup.expert
    if not isinstance(config, ExpertModel):
        return
    again = setup.recompute == "full"
    counts = p * config.top_k * config.experts * COUNTER  # how many rows each rank will send to each expert
    n_layers = sum(config.has_experts(layer) for layer in blocks_of(setup, layers))
    yield Call("expert", "all_to_all", config.top_k * _stream(setup), (6 if again else 4) * n_layers, p)
    yield Call("expert", "all_gather", counts, setup.micro_batches * n_layers * (2 if again else 1), p)


def _data(setup: Setup, parameters: Tally) -> Iterator[Call]:
    """Gradients once or for each micro-batch; weights once, or in both passes of each."""
    m = int(setup.micro_batches)
    for of_experts in (False, True):
        group = [pair for pair in parameters if ("expert" in pair[0].axes) == of_experts]
        gradients, ranks = _gradients(setup, group), setup.copies(of_experts)
        if group and not setup.zero:
            yield Call("data", "all_reduce", gradients, 1, ranks // setup.context)  # over context ranks: `_context`
        elif group:
            weights = _elements(group) * setup.weight_bytes
            yield Call("data", "reduce_scatter", gradients, m if setup.zero >= 2 else 1, ranks)
            yield Call("data", "all_gather", weights, 2 * m if setup.zero == 3 else 1, ranks)


def _gradients(setup: Setup, parameters: Tally) -> int:
    return _elements(parameters) * setup.gradient_bytes


def _elements(parameters: Tally) -> int:
    return sum(times * each.elements for each, times in parameters)


def _stream(setup: Setup) -> int:
    """Bytes of the stream of all of a rank's micro-batches."""
    return setup.weight_bytes * _tokens(setup) * setup.shape.width


def _logits(setup: Setup) -> int:
    return setup.weight_bytes * _tokens(setup) * setup.shape.vocab_size


def _tokens(setup: Setup) -> int:
    return setup.rank_rows * setup.seq // setup.context
