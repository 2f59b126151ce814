"""When gradients are ready, when their buckets leave, and how much of the sending hides behind the backward pass.

The backward pass finishes one gradient after the other. A bucket can leave when its last gradient is there and when the
link is free; buckets follow each other on one link, whose prices are those of the α–β model. What is still on its way
when the backward pass is over, everybody waits for. Nothing here starts a process: it is arithmetic, to be drawn.

Source of the idea: Li et al. 2020, §3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from course_kit.units import Bytes, Count, Seconds
from course_lib.model.gpt import GPT
from course_lib.parallel.data import plan_buckets
from course_lib.predict.link import Link
from course_lib.predict.setup import Setup, positive
from course_lib.predict.traffic import all_reduce


class Ready(NamedTuple):
    """A gradient, and when the backward pass has finished it."""

    name: str
    n_bytes: int
    ready_s: float


@dataclass(frozen=True)
class Departure:
    """A bucket on its way.

    Attributes:
        n_gradients, n_bytes: what it holds.
        full_s: when its last gradient was ready.
        start_s, end_s: when its all-reduce began and ended.
    """

    n_gradients: int
    n_bytes: Bytes
    full_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Overlap:
    """A backward pass and the all-reduces of its buckets. Time 0 is the start of the backward pass.

    Attributes:
        departures: the buckets, in the order in which they leave.
        backward_s: how long the rank computes.
        messages: what each rank sends for them.
    """

    departures: tuple[Departure, ...]
    backward_s: Seconds
    messages: Count

    @property
    def end_s(self) -> Seconds:
        """When the optimizer may step: everything is computed and everything has arrived."""
        return Seconds(max([self.backward_s, *(each.end_s for each in self.departures)]))

    @property
    def waiting_s(self) -> Seconds:
        """How long the rank waits behind its backward pass."""
        return Seconds(self.end_s - self.backward_s)


def overlap(
    gradients: Sequence[Ready],
    bucket_bytes: int,
    world_size: int,
    link: Link,
    overlapped: bool = True,
) -> Overlap:
    """Put the gradients into buckets as `parallel.plan_buckets` does, and send each as early as it can go.

    Args:
        gradients: in the order in which they get ready; the last one ends the backward pass.
        bucket_bytes: a bucket is closed once it holds so many bytes.
        world_size: ranks of the ring that sums each bucket.
        link: what a message and a byte cost.
        overlapped: False lets all buckets wait for the end of the backward pass.

    Raises:
        ValueError: no gradients, not in order, or as `plan_buckets` and `all_reduce`.
    """
    times = [each.ready_s for each in gradients]
    if not times or times != sorted(times):
        raise ValueError("overlap needs gradients in the order in which they get ready, at least one")
    stand_ins = [torch.empty(each.n_bytes, dtype=torch.uint8, device="meta") for each in gradients]
    departures: list[Departure] = []
    free_s = 0.0 if overlapped else times[-1]
    for numbers in plan_buckets(stand_ins, bucket_bytes, range(len(times))):
        n_bytes, full_s = sum(gradients[n].n_bytes for n in numbers), times[numbers[-1]]
        start_s = max(free_s, full_s)
        free_s = start_s + all_reduce(n_bytes, world_size).seconds(link)
        departures.append(Departure(len(numbers), Bytes(n_bytes), full_s, start_s, free_s))
    messages = len(departures) * all_reduce(0, world_size).messages
    return Overlap(tuple(departures), Seconds(times[-1]), Count(messages))


def gradients_ready(setup: Setup, flops_per_s: float) -> list[Ready]:
    """When a GPT's gradients get ready, if its backward pass runs at `flops_per_s`.

    The backward pass of a matrix takes 4 operations for each element and token; the rest (norms, biases, attention's
    scores) is left out. A tied embedding is used first (in the backward pass) as the head, and last as the embedding:
    only then is its gradient complete.

    Args:
        setup: the model, and the batch, which `data` ranks share; gradients have `setup.gradient_bytes` each.
        flops_per_s: reached, not the peak.

    Raises:
        ValueError: not a `GPTConfig`, no speed, something runs twice or in pieces, or layers that are split over ranks.
    """
    positive(flops_per_s=flops_per_s)
    setup.refuse_parallel("gradients_ready", "data", "zero")
    if setup.recompute != "none" or setup.micro_batches > 1:
        raise ValueError(
            f"recompute={setup.recompute!r}, micro_batch={setup.micro_batch}: gradients_ready follows a backward pass "
            f"of the whole batch in which nothing runs again"
        )
    config, tokens = setup.gpt, setup.rows * setup.seq
    per_element = 4 * tokens / flops_per_s
    clock = config.vocab_size * config.width * per_element  # the head comes first, tied or not
    found: list[Ready] = []
    for name, parameter in reversed(list(GPT(config, device="meta").named_parameters())):
        if parameter.ndim == 2 and "embedding" not in name and not name.startswith("head"):
            clock += parameter.numel() * per_element
        found.append(Ready(name, parameter.numel() * setup.gradient_bytes, clock))
    return found
