"""What one rank of many sends in a training step, by mesh axis and operation: tensor, context, pipe and data.

    sent = predict.rank_traffic(Setup(config, batch_size=8, tensor=2, data=2))
    sent["tensor"].attributed_bytes["all_reduce"], sent["data"].total_bytes

The ranks are those of `parallel.tensor_gpt`, `parallel.context_gpt`, `parallel.pipeline` and `parallel.data`: their
embedding and head are cut by width, which other libraries do otherwise; the blocks' part is everybody's.
"""

from __future__ import annotations

from collections import Counter

from course_kit.accounts import TrafficAccount
from course_kit.units import Bytes
from course_lib.predict.per_rank import Stage, rank_parameter_elements, refuse_mixed_context, stage_layers, whole_norm
from course_lib.predict.setup import Setup
from course_lib.predict.traffic import all_gather, all_reduce, all_to_all, reduce_scatter
from course_lib.predict.zero import data_traffic

_LOSS = 4
"""Bytes of the loss, one number in 32 bits."""


def rank_traffic(setup: Setup, stage: Stage = 0) -> dict[str, TrafficAccount]:
    """Bytes that a rank sends in one step, all its micro-batches together, along each axis of more than one rank.

    With n bytes of the stream of one micro-batch, t tensor, c context and d data ranks, and m micro-batches:

    - "tensor", for each block: 4 all-reduces of n (Shoeybi et al. 2019, §3); with `sequence_parallel` 6 all-gathers
      and 4 reduce-scatters of n, the same and half as much again, since inputs are gathered a second time for the
      weights' gradients (Korthikanti et al. 2022, §4.2.2). Besides, the first and the last stage gather or turn the
      stream where embedding and head are cut by width, the last one sums the logits, and with `sequence_parallel` the
      gradients of what every rank has whole are summed.
    - "context", for each block: 2n(3c-2)/c, keys and values and their gradients around the ring; and the gradients.
    - "pipe": n (n/t with `sequence_parallel`) to the next stage and back, and the tied table's gradient between the
      first and the last one. It depends on no schedule; each cut of the model is passed twice.
    - "data": an all-reduce of the rank's gradients, once; or what ZeRO makes of it: `data_traffic`.

    Averages over the ranks, rounded to a byte, where parts differ.

    Raises:
        ValueError: not a `GPTConfig`, a size that does not divide, recompute (which sends again), or context together
            with tensor or pipeline parallelism or with ZeRO.
    """
    if setup.recompute != "none":
        raise ValueError(f"recompute={setup.recompute!r} sends again what the blocks send: counted is a step without")
    refuse_mixed_context(setup)
    gradients = sum(rank_parameter_elements(setup, stage)) * setup.gradient_bytes
    layers = stage_layers(setup, stage)
    by_axis = {
        "tensor": _sequence(setup, layers) if setup.sequence_parallel else _tensor(setup, layers),
        "context": _context(setup, gradients),
        "pipe": Counter(send=_pipe(setup, layers)),
        "data": Counter({name: each.bytes for name, each in data_traffic(setup, stage).items()}),
    }
    size = {"tensor": setup.tensor, "context": setup.context, "pipe": setup.pipeline, "data": setup.data}
    return {
        axis: TrafficAccount(attributed_bytes={name: Bytes(n) for name, n in sent.items() if n})
        for axis, sent in by_axis.items()
        if size[axis] > 1
    }


def _tensor(setup: Setup, layers: range) -> Counter[str]:
    """The stream is whole on every rank."""
    t, stream, last = setup.tensor, _stream(setup), setup.gpt.layers + 1
    sent = Counter(all_reduce=4 * _blocks(setup, layers) * all_reduce(stream, t).bytes)
    if 0 in layers:
        sent["all_gather"] += all_gather(stream, t).bytes  # its features, joined
    if last in layers:
        sent["all_gather"] += all_gather(stream, t).bytes  # the gradient of the head's features, joined
        sent["all_reduce"] += all_reduce(_logits(setup), t).bytes
    return sent


def _sequence(setup: Setup, layers: range) -> Counter[str]:
    """Between the split products, each rank has its part of the sequence."""
    config, t, stream, last = setup.gpt, setup.tensor, _stream(setup), setup.gpt.layers + 1
    blocks, ends = _blocks(setup, layers), (0 in layers) + (last in layers)
    norm = sum(whole_norm(config))
    whole = blocks * (2 * norm + (2 * config.width if config.bias else 0)) + norm * (last in layers)
    each = all_reduce(whole * setup.weight_bytes + _LOSS * (last in layers), t).bytes
    sent = Counter(
        all_gather=6 * blocks * all_gather(stream, t).bytes,
        reduce_scatter=4 * blocks * reduce_scatter(stream, t).bytes,
        all_to_all=2 * ends * all_to_all(stream // t, t).bytes,  # features to tokens or back, forward and backward
        all_reduce=setup.micro_batches * each,
    )
    if last in layers:
        sent["reduce_scatter"] += reduce_scatter(_logits(setup), t).bytes
        sent["all_gather"] += all_gather(_logits(setup), t).bytes
    return sent


def _context(setup: Setup, gradients: int) -> Counter[str]:
    """Keys and values go c - 1 steps in each pass, and their gradients, in the backward pass, c steps."""
    c, own = setup.context, _stream(setup) // setup.context
    each = all_reduce(gradients + _LOSS, c).bytes
    return Counter(send=setup.gpt.layers * 2 * own * (3 * c - 2), all_reduce=setup.micro_batches * each)


def _pipe(setup: Setup, layers: range) -> int:
    """Forward to the next stage, backward to the one before."""
    config, last = setup.gpt, setup.gpt.layers + 1
    neighbours = (0 not in layers) + (last not in layers)
    boundary = _stream(setup) // (setup.tensor if setup.sequence_parallel else 1)
    table = config.vocab_size * config.width // setup.tensor * setup.gradient_bytes
    return neighbours * boundary + (table if config.tied and neighbours == 1 else 0)


def _stream(setup: Setup) -> int:
    """Bytes of the stream of all of a rank's micro-batches."""
    return setup.weight_bytes * _tokens(setup) * setup.gpt.width


def _logits(setup: Setup) -> int:
    return setup.weight_bytes * _tokens(setup) * setup.gpt.vocab_size


def _tokens(setup: Setup) -> int:
    return setup.batch_size // setup.data * setup.seq


def _blocks(setup: Setup, layers: range) -> int:
    return sum(0 < layer <= setup.gpt.layers for layer in layers)
