"""Runs of lesson 07: a rank's batch, the oracle, the traffic of a step, a step over time, a link that needs no core."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from course_kit import measure, ranks
from course_kit.measure.timeline import RankTimeline
from course_kit.units import Count
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel import BucketedDataParallel
from course_lib.train.step import train_step

SMALL = GPTConfig(layers=2, width=64, heads=4, vocab_size=256, context=64)
LARGER = GPTConfig(layers=6, width=256, heads=4, vocab_size=256, context=128)
Wrap = Callable[[Any], Any]
"""A class of replicas, or a function that makes one of a model."""


def share(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a rank in a step: two sequences of 64 bytes."""
    return text.stories(seed=0).batch(seed=0, step=step, rank=rank, batch_size=2, context=64)


def apart(histories: list[list[Tensor]]) -> list[float]:
    """The largest difference between any rank's weights and rank 0's, after each step."""
    return [max((mine - first).abs().max().item() for mine in step) for first, *step in zip(*histories)]


@functools.cache
def oracle(make_optimizer: Any = torch.optim.SGD, lr: float = 0.1) -> list[Tensor]:
    """The weights of one process after each of three steps on the joined batch of four ranks."""
    model, history = GPT(SMALL, seed=0, dtype=torch.float64), []
    optimizer = make_optimizer(model.parameters(), lr=lr)
    for step in range(3):
        inputs, targets = zip(*(share(step, rank) for rank in range(4)))
        train_step(model, optimizer, (torch.cat(inputs), torch.cat(targets)))
        history.append(parameters_to_vector(model.parameters()).detach().clone())
    return history


def judged(train: Callable[..., Any], wrap: Wrap, **options: Any) -> tuple[float, float]:
    """The largest difference between the weights of four replicas, and between rank 0's and the oracle's."""
    histories = ranks.run(train, wrap, world_size=4, **options)
    off = max((mine - right).abs().max().item() for mine, right in zip(histories[0], oracle()))
    return max(apart(histories)), off


def traffic_of_a_step(wrap: Wrap) -> dict[str, Any]:
    """Bytes and all-reduces of this rank in the third step: some wrappers prepare in the first two."""
    model = GPT(SMALL)
    replica = wrap(model)
    for step in range(3):
        model.zero_grad()
        with measure.traffic() as sent:
            replica(*share(step, dist.get_rank())).backward()
            getattr(replica, "synchronize", lambda: None)()
            dist.barrier()
    return {"bytes": sent.sent_bytes, "calls": Count(sent.messages["all_reduce"])}


def whole_batch() -> tuple[Tensor, Tensor]:
    """Inputs and targets for the larger model, the same on all ranks."""
    return text.stories(seed=0).batch(seed=0, step=0, rank=0, batch_size=2, context=128)


def record_a_step() -> RankTimeline:
    """A step of the larger model over time: the quickest of four, in which other programs disturbed least."""
    replica, records = BucketedDataParallel(GPT(LARGER), bucket_bytes=2**21), []
    for _ in range(4):
        dist.barrier()
        with measure.timeline() as record:
            with record.span("forward"):
                loss = replica(*whole_batch())
            with record.span("backward"):
                loss.backward()
            replica.synchronize()
        records.append(record)
    return min(records, key=lambda record: max(event.end_s for event in record.events))


class Slow:
    """An all-reduce over a link that needs no core: n bytes are under way for n / bytes_per_s, one bucket at a time."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s, self.free_at = bytes_per_s, 0.0

    def __call__(self, tensor: Tensor, group: Any) -> Any:
        """Begin; the handle's `wait` sleeps until the bytes have arrived."""
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        until = self.free_at = max(self.free_at, time.perf_counter()) + tensor.nbytes / self.bytes_per_s
        return SimpleNamespace(wait=lambda: (work.wait(), time.sleep(max(0.0, until - time.perf_counter()))))


def seconds_of_a_step(overlap: bool, bytes_per_s: float) -> float:
    """The quickest of three steps of the larger model, over a `Slow` link."""
    replica = BucketedDataParallel(GPT(LARGER), bucket_bytes=2**21, overlap=overlap, all_reduce=Slow(bytes_per_s))
    seconds = []
    for _ in range(4):
        dist.barrier()
        start = time.perf_counter()
        replica(*whole_batch()).backward()
        replica.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
