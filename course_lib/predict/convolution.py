"""What a convolutional network keeps for its backward pass: bs · c · h · w, once for each feature map.

A convolution keeps its input (the gradient of its kernel is a product with it) and ReLU keeps its result; the next
convolution reads that very tensor, so a feature map is kept once. Nothing here grows with a square, as a transformer's
scores do, but h · w is large in the first layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from course_kit.units import Bytes
from course_lib.predict.lifetimes.ledger import INT64


@dataclass(frozen=True)
class Convolution:
    """A convolution, batch norm if it has one, ReLU, and max-pooling if there is any.

    Attributes:
        channels: of its result.
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
    ReLU. Batch norm keeps its own input besides, another bs·c·h·w, and four numbers a channel. Max-pooling keeps 8
    bytes for each element of its result, saying which one was the largest, and its result is the next layer's input.
    (The result of a pooling at the very end is not kept: nothing reads it.)

    Args:
        layers: in order.
        batch_size: images.
        image: channels, height, width of the input.
        bytes_per_element: 4 in fp32, 2 in 16 bits.

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
            kept += INT64 * batch_size * prod(shape)
    pooled_last = bool(layers) and layers[-1].pool > 1
    return Bytes(kept + (0 if pooled_last else bytes_per_element * batch_size * prod(shape)))
