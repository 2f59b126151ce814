"""Bytes that one rank holds in training: model states, and tensors that autograd keeps for the backward pass.

Model states grow with the model alone; activations with batch × sequence × layers. Both are sums over the list of a
rank's tensors (`tensors.py`). The peak of a step is no such sum: see `peak.py`. The end of the file leaves the
transformer's training step: a cache of keys and values, inference, a convolutional network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes
from course_lib.model.gpt import GPTConfig
from course_lib.model.refusals import one_of
from course_lib.model.zoo import Architecture, ExpertModel
from course_lib.predict.lifetimes.ledger import FLOAT, INT64
from course_lib.predict.saved import stream_tensor
from course_lib.predict.setup import Setup, Shape, attention_of, config_of, not_negative, positive
from course_lib.predict.tensors import ROLES, Stage, blocks_of, bytes_of, rank_parameters, stage_layers, tally


def model_states(setup: Setup, stage: Stage = 0) -> MemoryAccount:
    """Bytes of parameters, gradients and optimizer state on one rank.

    With Ψ parameters:

    - "fp32": 4Ψ weights, 4Ψ gradients, and 4Ψ for each moment of the optimizer (SGD 0, momentum 1, Adam 2).
    - "mixed": 2Ψ weights and 2Ψ gradients in 16 bits; the optimizer keeps a 4Ψ copy of the weights and 4Ψ for each
      moment. With Adam that is 2 + 2 + 12 = 16 bytes a parameter (Rajbhandari et al. 2020, §3.1), and 18 with
      `gradients="fp32"` (Megatron-LM and DeepSpeed today).
    - "bf16": everything in 16 bits, no copy.

    With ZeRO, each of d `Setup.copies` has 1/d of the state (`zero=1`), of the gradients as well (2), of the weights as
    well (3). "mixed" with Adam is then 16Ψ, 4Ψ + 12Ψ/d, 2Ψ + 14Ψ/d, 16Ψ/d (Rajbhandari et al. 2020, §5); "fp32" 16Ψ,
    8Ψ + 8Ψ/d, 4Ψ + 12Ψ/d, 16Ψ/d. These are the bytes between steps and, of gradients, at the end of a backward pass;
    `unit_buffers` has what stage 3 gathers on the way. Where parts differ, bytes are the mean over ranks.
    (`parallel.zero3` in "mixed" has the same sum as 4 + 4 + 8: its parts of weights and gradients are fp32.)

    The step counters of PyTorch's Adam are included, 4 bytes for each parameter tensor; not for a bare number, whose
    tensors are not known, for "mixed", whose optimizer (`train.precision.MasterWeights`) counts without a tensor, and
    with ZeRO, whose buckets decide into how many pieces the tensors fall.

    Raises:
        ValueError: as `rank_tensors`.
    """
    held = tally(setup, stage, "parameters", "gradients", "optimizer")
    return MemoryAccount(**{role: bytes_of(pair for pair in held if pair[0].role == role) for role in ROLES})


def activations(setup: Setup, stage: Stage = 0) -> Bytes:
    """Bytes that autograd keeps on a rank between the forward and the backward pass of a (micro-)batch with loss.

    For GPT-2's shape (LayerNorm, learned positions, GELU, attention written out) on one rank that is, with B sequences
    of S tokens and all sizes in elements of 4 bytes,

        L · (8·BSD + 2·BSF + BHSS + 4·BS)  +  2·BSD + 2·BS + BSV

    and a few integers and booleans, the batch's own among them. With weights in 16 bits ("mixed", "bf16") an element
    has 2 bytes, except for BSV: the loss is computed in 32 bits. Parameters are kept, too, but counted elsewhere.
    `rank_tensors` names every tensor. Holds in training mode, and for sequences of at least 2 tokens; with one sequence
    in the batch, or one head on the rank, attention keeps q, k and v in one piece: 9·BSD. On t tensor ranks or c
    context ranks a block keeps

        tensor                     4·BSD + 4·BS  +  (4·BSD + 2·BSF + BHSS) / t
        tensor and sequence        (4·BSD + 4·BS + 4·BSD + 2·BSF + BHSS) / t
        context                    (8·BSD + 2·BSF + BHS + 4·BS) / c

    and one byte for each entry of the causal mask, SS, where scores are written out; in a ring there are none, only the
    logarithm of each row's sum. The BSV is whole on every tensor rank, or 1/t with `sequence_parallel`.

    With `recompute="full"`, of all blocks only one input for each segment of `setup.recompute_every` blocks is kept.
    "selective" drops the tensors between the scores and their use: softmax's result, dropout's mask and result, the
    causal mask. (The product's own copies of queries, keys and values go as well; the tensor that they were cut from
    stays, and so do rotary queries and keys.)

    Raises:
        ValueError: as `saved_tensors` and `rank_tensors`.
    """
    return bytes_of(tally(setup, stage, "activations"))


def rank_activations(setup: Setup, stage: Stage = 0) -> Bytes:
    """`activations` without the batch's own tokens and targets; a rank's copy of its part of them is counted."""
    kept = tally(setup, stage, "activations")
    return bytes_of((each, times) for each, times in kept if not each.name.startswith("batch."))


def block_activations(setup: Setup) -> Bytes:
    """Bytes that one block saves without recompute, its input among them: the difference that one more layer makes."""
    last = setup.shape.layers
    return rank_activations(setup.with_(recompute="none", recompute_every=1), range(last, last + 1))


def block_input(setup: Setup) -> Bytes:
    """Bytes of a block's input on a rank: a number for each of its tokens and each feature."""
    _, elements, element_bytes = stream_tensor(setup, "x")
    return Bytes(elements * element_bytes)


def activations_paper(setup: Setup, layers: int | None = None, stage: Stage = 0, ends: bool = False) -> Bytes:
    """Bytes that layers keep on one rank of one micro-batch, as the literature estimates it for 16-bit training.

    For one layer, in the letters of Korthikanti et al. 2022, Table 2 (s tokens, b sequences of a micro-batch, h width,
    a heads, t ranks of tensor parallelism), with dropout:

        no parallelism                s·b·h · (34 + 5·a·s/h)
        tensor                        s·b·h · (10 + 24/t + 5·a·s/(h·t))
        tensor and sequence           s·b·h/t · (34 + 5·a·s/h)
        … with selective recompute    the same without 5·a·s/h
        full recompute                s·b·h · 2

    Of the 34, attention keeps 11, the MLP 19 and the norms 4; 5·a·s/h is the scores: softmax's result, a dropout mask
    of one byte, and the dropped weights. The 10 are the norms' inputs, the inputs of the two split products and two
    dropout masks, which tensor parallelism leaves whole and sequence parallelism splits too.

    An `Architecture` is counted by the same rules, as it is trained: without dropout and without scores. With f hidden
    features and k features of keys it is s·b·(8·h + (4·h + 4·k + 8·f)/t) where the MLP is gated, 4·f where not.
    Context parallelism leaves 1/c of all tokens.

    Args:
        setup: its `precision` must be one with 16-bit weights.
        layers: number of layers; those of the stage by default, with a pipeline L/p.
        stage: of the pipeline.
        ends: whether a stage that has them counts its embeddings' dropout, s·b·h, and the last norm, the head and the
            loss, 4·s·b·h·(1 + v/h)/t (the same, §4.3).

    Raises:
        ValueError: a GPT with another MLP than 4 × width, experts, no scores, fp32, or segments of several blocks.
    """
    setup.refuse_parallel("activations_paper", "tensor", "pipeline", "data", "context", "zero", "sequence_parallel")
    config = setup.shape
    if isinstance(config, ExpertModel):
        raise ValueError(f"activations_paper is for layers that are alike; {config.name} has experts")
    if isinstance(config, GPTConfig) and config.mlp_width != 4 * config.width:
        raise ValueError(
            f"activations_paper: a GPT of width {config.width} and an MLP of {config.mlp_width}; it needs 4 ×"
        )
    fused = isinstance(config, GPTConfig) and config.attention != "explicit"
    if setup.precision == "fp32" or setup.recompute_every > 1 or (setup.recompute == "none" and fused):
        raise ValueError(
            'activations_paper counts layers one by one, in 16-bit training with kept scores: give precision="mixed". '
            f"Here: precision={setup.precision!r}, fused attention: {fused}, recompute_every={setup.recompute_every}"
        )
    numbers = stage_layers(setup, stage)
    layers = len(blocks_of(setup, numbers)) if layers is None else layers
    not_negative(layers=layers)
    dropout = isinstance(config, GPTConfig)
    stream = setup.tokens * config.width
    first, last = (ends and number in numbers for number in (0, config.layers + 1))
    at_ends = (dropout and first) * stream / setup.stream_parts  # the mask of the embeddings' dropout, a byte each
    at_ends += last * 4 * (stream + setup.tokens * config.vocab_size) / setup.tensor
    return Bytes(round(layers * _paper_layer(setup, config, stream) + at_ends))


def _paper_layer(setup: Setup, config: GPTConfig | Architecture, stream: int) -> float:
    """Bytes of one layer, with `stream` elements between the split products on all tensor ranks."""
    if setup.recompute == "full":
        return 2 * stream  # a layer's input, in 16 bits
    if isinstance(config, Architecture):
        keys = setup.tokens * config.kv_heads * config.head_width  # grouped heads: fewer than features
        hidden = (8 if config.gated else 4) * setup.tokens * config.mlp_width
        return 8 * stream / setup.stream_parts + (4 * stream + 4 * keys + hidden) / setup.tensor
    scores = 0 if setup.recompute == "selective" else 5 * config.heads * setup.tokens * setup.seq  # 5 = 2 + 1 + 2 bytes
    return 10 * stream / setup.stream_parts + (24 * stream + scores) / setup.tensor


def kv_cache(
    shape: Shape | Setup, batch_size: int | None = None, seq: int | None = None, bytes_per_element: int = 2
) -> Bytes:
    """Bytes of the cached keys and values: 2 · layers · kv_heads · head_width · batch · seq · bytes_per_element.

    The 2 stands for keys *and* values. Latent attention caches the narrow vector and the turned key instead.

    Args:
        shape: a config, or a row of the zoo; or a `Setup` on one rank, for its own sequences.
        batch_size, seq: sequences that are generated at once, and tokens of each so far; a `Setup` has its own.
        bytes_per_element: 2 for fp16 and bf16, 1 for int8.

    Raises:
        ValueError: a size is missing or negative.
    """
    if isinstance(shape, Setup):
        shape.refuse_parallel("kv_cache")
        batch_size, seq = batch_size or shape.batch_size, seq or shape.seq
    if batch_size is None or seq is None:
        raise ValueError(f"batch_size={batch_size}, seq={seq}: give the sequences and how long they are")
    not_negative(batch_size=batch_size, seq=seq, bytes_per_element=bytes_per_element)
    config = config_of(shape.shape if isinstance(shape, Setup) else shape)
    features = attention_of(config).cached_features
    return Bytes(config.layers * features * batch_size * seq * bytes_per_element)


def host_memory(shape: Shape | float, processes: int, made: Literal["whole", "in turn", "meta"] = "whole") -> Bytes:
    """Bytes of a machine's main memory at the moment when its processes make their models.

    Each process of a machine, one for each GPU, runs the same script, and `Model()` fills fp32 in main memory: 4Ψ
    bytes, whatever share of the model the process keeps in the end. So 8 GPUs need 8 times the model beside them, for a
    moment; for 70 billion parameters that is 2.24 TB.

    Args:
        shape: the whole model, or its number of parameters.
        processes: of one machine.
        made: "whole": all make the model at once; "in turn": one after the other, each moves its own part to its
            device and frees the rest; "meta": without memory, which `model.materialize` takes on the device.
    """
    positive(processes=processes)
    one_of("made", made, ("whole", "in turn", "meta"))
    copies = {"whole": processes, "in turn": 1, "meta": 0}[made]  # alive at the worst moment
    return Bytes(copies * FLOAT * rank_parameters(Setup(shape, seq=1)))


def inference_buffers(sizes: Sequence[int]) -> Bytes:
    """The most bytes that a chain of operations holds at once when nothing is saved: an input and its result.

    Args:
        sizes: bytes of the chain's input and of each operation's result, in order.

    Raises:
        ValueError: fewer than two sizes, or a negative one.
    """
    not_negative(smallest=min(sizes, default=0))
    if len(sizes) < 2:
        raise ValueError(f"sizes={list(sizes)}: give the input's bytes and those of at least one result")
    return Bytes(max(first + second for first, second in pairwise(sizes)))  # an input lives until its result is there


@dataclass(frozen=True)
class Convolution:
    """A convolution, batch norm if it has one, ReLU, and max-pooling if there is any.

    Attributes:
        channels: channels of the result.
        kernel, stride, padding: as in `torch.nn.Conv2d`.
        norm: whether batch norm stands between convolution and ReLU.
        pool: side (and step) of max-pooling at the end; 1 for none.
    """

    channels: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    norm: bool = False
    pool: int = 1

    def __post_init__(self) -> None:
        if min(self.channels, self.kernel, self.stride, self.pool) < 1 or self.padding < 0:
            raise ValueError(f"{self}: sizes must be at least 1, padding at least 0")

    def side(self, side: int) -> int:
        """Height or width of the result, before pooling."""
        return (side + 2 * self.padding - self.kernel) // self.stride + 1


def convolution_activations(
    layers: Sequence[Convolution], batch_size: int, image: tuple[int, int, int], bytes_per_element: int = 4
) -> Bytes:
    """Bytes that autograd keeps for `layers`, one after the other, exactly.

    With c × h × w the image and every feature map, that is bs·c·h·w elements for the image and for the result of each
    ReLU. Batch norm keeps its own input besides, another bs·c·h·w, and four numbers a channel. Max-pooling keeps the
    place of the largest, 8 bytes for each element of its result, which is the next layer's input and kept if there is
    one. `image` is the input's channels, height and width.

    Raises:
        ValueError: no images, or an image that is too small for a layer.
    """
    shape = image
    if batch_size < 1 or min(shape) < 1:
        raise ValueError(f"batch_size={batch_size}, image={image}: all must be at least 1")
    kept = 0
    for layer in layers:
        kept += bytes_per_element * batch_size * prod(shape)  # a layer's input
        shape = (layer.channels, *(layer.side(side) for side in shape[1:]))
        if min(shape) < 1 or min(shape[1:]) < layer.pool:
            raise ValueError(
                f"{layer} gets too small an image and makes {shape}: leave out a layer or enlarge the image"
            )
        if layer.norm:
            kept += bytes_per_element * (batch_size * prod(shape) + 4 * layer.channels)
        if layer.pool > 1:
            kept += bytes_per_element * batch_size * prod(shape)
            shape = (layer.channels, *(side // layer.pool for side in shape[1:]))
            kept += INT64 * batch_size * prod(shape)  # where each largest one stood
    pooled_last = bool(layers) and layers[-1].pool > 1
    return Bytes(kept + (0 if pooled_last else bytes_per_element * batch_size * prod(shape)))
