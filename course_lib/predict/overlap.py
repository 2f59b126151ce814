"""Sending behind the backward pass: which bucket of gradients leaves when, and the tokens that hide all of them.

ready = predict.gradients_ready(setup, flops_per_s=1e11)
predict.overlap(ready, bucket_bytes=2**20, world_size=4, link=link).waiting_s
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from course_kit.units import Bytes, Count, Seconds
from course_lib.model.zoo import ExpertModel
from course_lib.parallel.data import plan_buckets
from course_lib.predict.setup import Setup, positive
from course_lib.predict.tensors import rank_tensors
from course_lib.predict.traffic import Link, all_reduce, two_level_all_reduce


class GradientReady(NamedTuple):
    """A gradient, and the time at which the backward pass has finished it."""

    name: str
    n_bytes: int
    ready_s: float


@dataclass(frozen=True)
class BucketSend:
    """A bucket: its content, and the times at which its last gradient was ready, its all-reduce began and ended."""

    n_gradients: int
    n_bytes: Bytes
    full_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Overlap:
    """A backward pass and the all-reduces of its buckets (Li et al. 2020, §3.2). Time 0 is where the pass begins."""

    departures: tuple[BucketSend, ...]  # the buckets, in the order in which they leave
    backward_s: Seconds  # for which the rank computes
    messages: Count  # that each rank sends

    @property
    def end_s(self) -> Seconds:
        """The time at which the optimizer may step: all is computed and has arrived."""
        return Seconds(max([self.backward_s, *(each.end_s for each in self.departures)]))

    @property
    def waiting_s(self) -> Seconds:
        """The time for which the rank waits behind its backward pass."""
        return Seconds(self.end_s - self.backward_s)


def overlap(
    gradients: Sequence[GradientReady], bucket_bytes: int, world_size: int, link: Link, overlapped: bool = True,
) -> Overlap:  # fmt: skip
    """Put the gradients into buckets as `parallel.plan_buckets` does, and send each as early as it can go.

    Args:
        gradients: in the order in which they get ready; the last one ends the backward pass.
        bucket_bytes: a bucket is closed once it holds so many bytes.
        world_size: ranks of the ring that sums each bucket.
        overlapped: False lets all buckets wait for the end of the backward pass.

    Raises:
        ValueError: no gradients, not in order, or as `plan_buckets` and `all_reduce`.
    """
    times = [each.ready_s for each in gradients]
    if not times or times != sorted(times):
        raise ValueError("overlap needs gradients in the order in which they get ready, at least one")
    stand_ins = [torch.empty(each.n_bytes, dtype=torch.uint8, device="meta") for each in gradients]
    departures: list[BucketSend] = []
    free_s = 0.0 if overlapped else times[-1]
    for numbers in plan_buckets(stand_ins, bucket_bytes, range(len(times))):
        n_bytes, full_s = sum(gradients[n].n_bytes for n in numbers), times[numbers[-1]]
        start_s = max(free_s, full_s)
        free_s = start_s + all_reduce(n_bytes, world_size).seconds(link)
        departures.append(BucketSend(len(numbers), Bytes(n_bytes), full_s, start_s, free_s))
    messages = len(departures) * all_reduce(0, world_size).messages
    return Overlap(tuple(departures), Seconds(times[-1]), Count(messages))


def gradients_ready(setup: Setup, flops_per_s: float) -> list[GradientReady]:
    """The times at which gradients get ready, if the backward pass runs at `flops_per_s`.

    The backward pass of a matrix takes 4 operations for each element and token; the rest (norms, biases, attention's
    scores) is left out. A tied embedding's gradient is complete at the end, though the head's share comes first.

    Args:
        setup: the model, and the batch, which `data` ranks share; gradients have `setup.gradient_bytes` each.
        flops_per_s: reached, not the peak.

    Raises:
        ValueError: no config or one with experts, no speed, something runs twice or in pieces, or layers that are split
            over ranks.
    """
    positive(flops_per_s=flops_per_s)
    setup.refuse_parallel("gradients_ready", "data", "zero")
    if setup.recompute != "none" or setup.micro_batches > 1 or isinstance(setup.shape, ExpertModel):
        raise ValueError(
            f"{setup}: gradients_ready follows a backward pass of the whole batch, in which nothing runs again and "
            f"every token meets every matrix"
        )
    per_element = 4 * setup.tokens / flops_per_s
    clock = setup.shape.vocab_size * setup.shape.width * per_element  # the head comes first, tied or not
    found: list[GradientReady] = []
    for name, _, layer, elements, element_bytes, *_ in reversed(rank_tensors(setup, 0, "gradients")):
        is_matrix = name.endswith(".weight.grad") and "norm" not in name
        if is_matrix and 0 < layer <= setup.shape.layers:
            clock += elements * per_element
        found.append(GradientReady(name.removesuffix(".grad"), elements * element_bytes, clock))
    return found


def tokens_to_hide(
    flops_per_s: float, link_bytes_per_s: float, world_size: int, bytes_per_gradient: int = 2, ranks_per_node: int = 1,
    inside_bytes_per_s: float = float("inf"),
) -> Count:  # fmt: skip
    """The tokens per rank with which a backward pass lasts as long as the all-reduce of its gradients.

    4·Ψ·D / R = Ψ · bytes · 2 · max((G-1)/G / W_inside, (N-1)/N / (G · W)), so Ψ cancels out. Messages cost nothing
    here, and both levels are at work at once (long tensors go in pieces), so the slower one counts. With one rank in a
    node, two bytes and many ranks that is R/W; with G ranks that have a link each, R/(G · W).

    Args:
        flops_per_s: that a rank reaches, R.
        link_bytes_per_s, inside_bytes_per_s: from a rank to other nodes, W; to ranks of its own node.
        world_size: ranks in all nodes.
        bytes_per_gradient: 2 for bf16.
        ranks_per_node: G; 1 for a ring over all ranks.

    Source: Austin et al. 2025, "How to Scale Your Model", training and GPUs, data parallelism.

    Raises:
        ValueError: a speed, a number of ranks or the size of a gradient is not positive, or the last node is not full.
    """
    positive(
        flops_per_s=flops_per_s, link_bytes_per_s=link_bytes_per_s, world_size=world_size,
        bytes_per_gradient=bytes_per_gradient, ranks_per_node=ranks_per_node, inside_bytes_per_s=inside_bytes_per_s,
    )  # fmt: skip
    nodes, left = divmod(world_size, ranks_per_node)
    if left:
        raise ValueError(f"{world_size} ranks do not fill nodes of {ranks_per_node}: {left} are left; give whole nodes")
    unit = 2**40  # gradients' bytes, so many that rounding to a byte does not matter
    inside, across = two_level_all_reduce(unit, nodes, ranks_per_node)
    seconds_per_byte = max(inside.bytes / inside_bytes_per_s, across.bytes / link_bytes_per_s) / unit
    return Count(round(bytes_per_gradient * flops_per_s * seconds_per_byte / 4))  # 4 FLOPs a token and gradient
