"""A chain of equal layers, of which only every K-th input is kept: the bytes held at each moment, and the layers rerun.

This is the idea of recompute without the model. An input that is not kept may also be swapped, to DRAM and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from course_kit.units import Bytes, Ratio
from course_lib.predict.setup import positive


@dataclass(frozen=True)
class Moment:
    """One run of one layer, and the tensors that are held for the backward pass while it ends."""

    phase: str  # "forward", "recompute" or "backward"
    layer: int  # from 0
    boundaries: int  # inputs of segments that are held, those of segments 0 to `boundaries - 1`
    inside: int  # layers whose saved tensors are held, those up to `layer` from the start of its segment
    held: Bytes  # all this together
    start: int  # in runs of a layer's forward pass
    duration: int  # a backward pass takes two


@dataclass(frozen=True)
class Chain:
    """Equal layers in a row.

    Raises:
        ValueError: no layer, a negative size, or an input that is said to be part of less than itself.
    """

    layers: int  # N
    boundary_bytes: int  # X, the input of a layer, which a segment keeps
    saved_bytes: int  # A, the tensors that one layer saves for its backward pass
    keeps_input: bool = False  # whether A counts the layer's own input, which a segment's first layer has as boundary

    def __post_init__(self) -> None:
        if self.layers < 1 or min(self.boundary_bytes, self.saved_bytes) < 0:
            raise ValueError(f"{self}: at least 1 layer, and no negative size")
        if self.keeps_input and self.saved_bytes < self.boundary_bytes:
            raise ValueError(f"{self}: a layer that keeps its input saves at least as many bytes as the input has")

    def film(self, every: int | None) -> list[Moment]:
        """A step of the chain, frame by frame; `every` is K, and None recomputes nothing."""
        frames, start = [], 0
        for phase, layer, boundaries, inside in self._runs(every):
            shared = self.boundary_bytes if self.keeps_input and boundaries and inside else 0
            held = Bytes(boundaries * self.boundary_bytes + inside * self.saved_bytes - shared)
            duration = 2 if phase == "backward" else 1
            frames.append(Moment(phase, layer, boundaries, inside, held, start, duration))
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
        return max(frame.held for frame in self.film(every))

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


def swap_break_even(flops_per_s: float, link_bytes_per_s: float) -> Ratio:
    """FLOPs per saved byte from which on swapping is faster than computing again: 2 · speed / bandwidth."""
    positive(flops_per_s=flops_per_s, link_bytes_per_s=link_bytes_per_s)
    return Ratio(2 * flops_per_s / link_bytes_per_s)
