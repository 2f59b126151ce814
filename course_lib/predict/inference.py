"""What a network keeps in memory when nobody asks for gradients: two buffers, and for a language model its past."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from course_kit.units import Bytes
from course_lib.predict.params import Shape, config_of, kv_heads_of
from course_lib.predict.setup import not_negative


def kv_cache(shape: Shape, batch_size: int, seq: int, bytes_per_element: int = 2, kv_heads: int | None = None) -> Bytes:
    """Bytes of the cached keys and values: 2 · layers · kv_heads · head_width · batch · seq · bytes_per_element.

    The 2 stands for keys *and* values, and is forgotten in more than one published calculator.

    Args:
        shape: a config, or a row of the zoo.
        batch_size: sequences that are generated at once.
        seq: tokens per sequence so far.
        bytes_per_element: 2 for fp16 and bf16, 1 for int8.
        kv_heads: to ask what another grouping would hold; the shape's own by default.

    Raises:
        ValueError: a negative size, or the query heads do not split into `kv_heads` equal groups.
    """
    not_negative(batch_size=batch_size, seq=seq, bytes_per_element=bytes_per_element)
    config = config_of(shape)
    kv_heads = kv_heads_of(config) if kv_heads is None else kv_heads
    if kv_heads < 1 or config.heads % kv_heads:
        raise ValueError(f"{config.heads} query heads do not split into kv_heads={kv_heads} equal groups")
    elements = 2 * config.layers * kv_heads * config.head_width * batch_size * seq
    return Bytes(elements * bytes_per_element)


def inference_buffers(sizes: Sequence[int]) -> Bytes:
    """The most bytes that a chain of operations holds at once when nothing is saved: two neighbours.

    While an operation runs, its input and its result exist; then the input can go. So the peak is the largest sum of
    two neighbours, however long the chain is. (Training keeps them all: their sum.)

    Args:
        sizes: bytes of the chain's input and of each operation's result, in order.

    Raises:
        ValueError: fewer than two sizes, or a negative one.
    """
    not_negative(smallest=min(sizes, default=0))
    if len(sizes) < 2:
        raise ValueError(f"sizes={list(sizes)}: give the input's bytes and those of at least one result")
    return Bytes(max(first + second for first, second in pairwise(sizes)))
