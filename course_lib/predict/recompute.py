"""What recompute saves and what it costs: a chain of layers moment by moment, a GPT's rows, and swap beside it.

A `Chain` is the idea without the model: equal layers, of which only every K-th input is kept. Its `film` lists, one
frame for each run of a layer, what is held; the peak is the largest frame. Below it stand the rows that a transformer
adds (nothing recomputed, the scores, everything), exactly for our GPT and as the literature writes them, and the
division that decides between computing again and fetching from DRAM.

Lesson 03 opens this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from course_lib.model.gpt import GPTConfig
from course_lib.predict.flops import block_flops
from course_lib.predict.memory import activations
from course_lib.predict.params import Shape, config_of
from course_lib.units import Bytes, Flops, Ratio, Seconds

Recompute = Literal["none", "selective", "full"]
"""What runs again: nothing, the scores of attention, or whole layers."""


@dataclass(frozen=True)
class Frame:
    """One run of one layer, and what is held for the backward pass while it ends.

    Attributes:
        phase: "forward", "recompute" or "backward".
        layer: which one runs, from 0.
        boundaries: inputs of segments that are held, those of segments 0 to `boundaries - 1`.
        inside: layers whose saved tensors are held, those up to `layer` from the start of its segment.
        held: bytes of all this together.
        start, duration: in runs of a layer's forward pass; a backward pass takes two.
    """

    phase: str
    layer: int
    boundaries: int
    inside: int
    held: Bytes
    start: int
    duration: int


@dataclass(frozen=True)
class Chain:
    """Equal layers in a row.

    Attributes:
        layers: N.
        boundary_bytes: X, the input of a layer, which a segment keeps.
        saved_bytes: A, what one layer saves for its backward pass.
        layer_flops: of one layer's forward pass.
        keeps_input: whether A counts the layer's own input. A segment's first layer then shares it with the boundary.

    Raises:
        ValueError: no layer, a negative size, or an input that is said to be part of less than itself.
    """

    layers: int
    boundary_bytes: int
    saved_bytes: int
    layer_flops: int = 0
    keeps_input: bool = False

    def __post_init__(self) -> None:
        if self.layers < 1 or min(self.boundary_bytes, self.saved_bytes, self.layer_flops) < 0:
            raise ValueError(f"{self}: at least 1 layer, and no negative size")
        if self.keeps_input and self.saved_bytes < self.boundary_bytes:
            raise ValueError(f"{self}: a layer that keeps its input saves at least as many bytes as the input has")

    def film(self, every: int | None) -> list[Frame]:
        """A step of the chain, frame by frame.

        Args:
            every: K, layers in a segment (the last may be shorter); None keeps everything and recomputes nothing.

        Raises:
            ValueError: `every` is less than 1.
        """
        frames, start = [], 0
        for phase, layer, boundaries, inside in self._runs(every):
            duration = 2 if phase == "backward" else 1
            held = self._held(boundaries, inside)
            frames.append(Frame(phase, layer, boundaries, inside, held, start, duration))
            start += duration
        return frames

    def held(self, every: int | None) -> Bytes:
        """Bytes held between the forward and the backward pass: N · A, or ceil(N/K) · X."""
        return self.film(every)[self.layers - 1].held

    def peak(self, every: int | None) -> Bytes:
        """The most bytes held at one moment.

        With N a multiple of K that is N/K · X + K · A (minus X where `keeps_input`), least near K = sqrt(N · X / A):
        Chen et al. 2016, §4. A shorter last segment is accounted for.
        """
        return max(self._held(boundaries, inside) for _, _, boundaries, inside in self._runs(every))

    def recomputed_flops(self, every: int | None) -> Flops:
        """FLOPs that a plain step does not have: those of one forward pass, whatever K is."""
        return Flops(0 if every is None else self.layers * self.layer_flops)

    def step_flops(self, every: int | None) -> Flops:
        """FLOPs of a step, when the backward pass takes twice those of the forward pass."""
        return Flops(3 * self.layers * self.layer_flops) + self.recomputed_flops(every)

    def best_every(self) -> int:
        """The K with the lowest peak; of several, the smallest."""
        return min(range(1, self.layers + 1), key=self.peak)

    def halves_peak(self) -> Bytes:
        """The peak when the first half is one recomputed segment, and each half is treated so again.

        One boundary for each halving, and the last layer's tensors: (log2 N) · X + A (Chen et al. 2016, §4.4).

        Raises:
            ValueError: the number of layers is not a power of two.
        """
        return Bytes(self._halvings() * self.boundary_bytes + self.saved_bytes)

    def halves_recomputed_flops(self) -> Flops:
        """What that costs: at each halving, half of all layers run again: N/2 · log2 N of them.

        Raises:
            ValueError: the number of layers is not a power of two.
        """
        return Flops(self.layers // 2 * self._halvings() * self.layer_flops)

    def _runs(self, every: int | None) -> Iterator[tuple[str, int, int, int]]:
        """(phase, layer, boundaries, inside) in the order in which layers run."""
        if every is None:
            yield from (("forward", layer, 0, layer + 1) for layer in range(self.layers))
            yield from (("backward", layer, 0, layer + 1) for layer in reversed(range(self.layers)))
            return
        if every < 1:
            raise ValueError(f"every={every} given; a segment has at least 1 layer")
        yield from (("forward", layer, layer // every + 1, 0) for layer in range(self.layers))
        for segment in reversed(range(-(-self.layers // every))):
            first = segment * every
            inner = range(first, min(first + every, self.layers))
            yield from (("recompute", layer, segment + 1, layer - first + 1) for layer in inner)
            yield from (("backward", layer, segment + 1, layer - first + 1) for layer in reversed(inner))

    def _held(self, boundaries: int, inside: int) -> Bytes:
        shared = self.boundary_bytes if self.keeps_input and boundaries and inside else 0
        return Bytes(boundaries * self.boundary_bytes + inside * self.saved_bytes - shared)

    def _halvings(self) -> int:
        halvings = self.layers.bit_length() - 1
        if 2**halvings != self.layers:
            raise ValueError(f"{self.layers} layers cannot be halved down to one: give a power of two")
        return halvings


def held_activations(
    config: GPTConfig, batch_size: int, seq: int, recompute: Recompute = "none", every: int = 1
) -> Bytes:
    """Bytes that autograd keeps between the passes of our GPT's step, exactly, with and without recompute.

    "full" keeps, of all blocks, one input for each segment of `every` blocks. "selective" keeps all but what lies
    between the scores and their use: softmax's result, dropout's mask and result, and the mask of the future. (The
    product's own copies of queries, keys and values go as well, and the tensor stays that they were cut from; rotary
    queries and keys are no part of it and stay besides.)

    Raises:
        ValueError: as `activations`; unknown `recompute`; selective without explicit attention; `every` below 1.
    """
    _known(recompute)
    everything = activations(config, batch_size, seq)
    if recompute == "none":
        return everything
    if recompute == "selective":
        if config.attention != "explicit":
            raise ValueError('attention="fused" keeps no scores: there is nothing to recompute selectively')
        scores = 4 * batch_size * config.heads * seq * seq
        rotated = 2 * block_input(config, batch_size, seq) if config.positions == "rotary" else 0
        return everything - config.layers * (scores * (3 if config.dropout else 1) + seq * seq - rotated)
    if every < 1:
        raise ValueError(f"every={every} given; a segment has at least 1 layer")
    segments = -(-config.layers // every)
    return (
        everything
        - config.layers * block_activations(config, batch_size, seq)
        + segments * block_input(config, batch_size, seq)
    )


def block_activations(config: GPTConfig, batch_size: int, seq: int) -> Bytes:
    """Bytes that one block of our GPT saves, its input among them: the difference that one more layer makes."""
    one, two = (replace(config, layers=layers) for layers in (1, 2))
    return activations(two, batch_size, seq) - activations(one, batch_size, seq)


def block_input(config: GPTConfig, batch_size: int, seq: int) -> Bytes:
    """Bytes of a block's input in 32 bits."""
    return Bytes(4 * batch_size * seq * config.width)


def recomputed_flops(shape: Shape, batch_size: int, seq: int, recompute: Recompute = "full") -> Flops:
    """FLOPs that recompute adds to a step: whole blocks, or the two products around the scores (4·b·s²·h a layer).

    Source: counted, as `measure.flops` counts. Korthikanti et al. 2022 print three times as much for the selective one:
    their eq. 8 less eq. 7, 12·b·s²·h a layer, is what these products take in a whole step, the backward pass included.

    Raises:
        ValueError: unknown `recompute`, or `shape` has relative positions.
    """
    _known(recompute)
    config = config_of(shape)
    scores = 4 * batch_size * seq * seq * config.heads * config.head_width
    a_layer = {"none": 0, "selective": scores, "full": block_flops(config, batch_size, seq)}
    return Flops(config.layers * a_layer[recompute])


def layer_activations_paper(
    shape: Shape, batch_size: int, seq: int, recompute: Recompute = "none", tensor_parallel: int = 1,
    sequence_parallel: bool = False,
) -> Bytes:  # fmt: skip
    """Bytes that one layer keeps on one rank in 16-bit training: the rows of Korthikanti et al. 2022, Table 2.

    With the paper's letters (s tokens, b sequences, h width, a heads, t ranks of tensor parallelism):

        no parallelism                s·b·h · (34 + 5·a·s/h)
        tensor                        s·b·h · (10 + 24/t + 5·a·s/(h·t))
        tensor and sequence           s·b·h/t · (34 + 5·a·s/h)
        … with selective recompute    the same without 5·a·s/h
        full recompute                s·b·h · 2

    The 10 are the norms' inputs, the inputs of the two split products and two dropout masks, which tensor parallelism
    leaves whole and sequence parallelism splits too. Lesson 08 builds both.

    Raises:
        ValueError: unknown `recompute`, or a number that is not positive.
    """
    _known(recompute)
    if min(batch_size, seq, tensor_parallel) < 1:
        raise ValueError(f"{batch_size=}, {seq=}, {tensor_parallel=}: all must be at least 1")
    config = config_of(shape)
    stream = batch_size * seq * config.width
    if recompute == "full":
        return Bytes(2 * stream)
    scores = 0 if recompute == "selective" else 5 * config.heads * batch_size * seq * seq
    whole, split = (0, 34) if sequence_parallel else (10, 24)
    return Bytes(stream * whole + (stream * split + scores) / tensor_parallel)


def swap_time(nbytes: int, link_bytes_per_s: float) -> Seconds:
    """Seconds to send a tensor to DRAM and to fetch it back, if nothing else happens meanwhile: 2n/b.

    Raises:
        ValueError: the link has no speed.
    """
    _positive(link_bytes_per_s=link_bytes_per_s)
    return Seconds(2 * nbytes / link_bytes_per_s)


def recompute_time(flops: int, flops_per_s: float) -> Seconds:
    """Seconds to compute it again at `flops_per_s`.

    Raises:
        ValueError: the device has no speed.
    """
    _positive(flops_per_s=flops_per_s)
    return Seconds(flops / flops_per_s)


def swap_break_even(flops_per_s: float, link_bytes_per_s: float) -> Ratio:
    """FLOPs per saved byte from which on swapping is faster than computing again: 2 · speed / bandwidth.

    Raises:
        ValueError: a speed is not positive.
    """
    _positive(flops_per_s=flops_per_s, link_bytes_per_s=link_bytes_per_s)
    return Ratio(2 * flops_per_s / link_bytes_per_s)


def _known(recompute: str) -> None:
    if recompute not in ("none", "selective", "full"):
        raise ValueError(f"recompute={recompute!r}: it must be one of 'none', 'selective', 'full'")


def _positive(**speeds: float) -> None:
    for name, speed in speeds.items():
        if not speed > 0:
            raise ValueError(f"{name}={speed}: it must be positive")
