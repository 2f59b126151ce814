"""The quickest of several runs; runs on both cores; memory of a process that trains, by tensors and by the system."""

from __future__ import annotations

import sys
import time
import timeit
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from course_kit import measure, ranks
from course_kit.units import Bytes, Seconds
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.offload.copy_stream import CopyStream


def ledger(
    kind: Callable[[nn.Module, CopyStream, CopyStream], Any], config: GPTConfig, busy: bool = False
) -> list[Bytes]:
    """Bytes in 16 bits and in 32 behind the second backward pass of `kind(model, out, back)`; the last step runs, too.

    If `busy`, another copy of a second keeps `out` busy from before that pass.
    """
    model, out = GPT(config, dtype=torch.bfloat16), CopyStream(1e6 if busy else None)
    o, stories = kind(model, out, CopyStream()), text.stories(seed=0)
    with measure.memory(model, o.adamw) as record:
        for number in range(2):
            if busy and number:
                out.send(torch.ones(250_000), torch.ones(250_000))
            model(*stories.batch(seed=0, step=number, rank=0, batch_size=4, context=config.context)).backward()
            if not (busy and number):
                [arrives.result() for arrives in o.coming]
                time.sleep(0.1)  # the copy stream's thread frees the last tensor a moment later
            alive = record.largest(10_000, at="now")
            o.step()
    return [
        Bytes(sum(each.bytes for each in alive if each.dtype == dtype)) for dtype in (torch.bfloat16, torch.float32)
    ]


def best(work: Callable[[], object], times: int = 5) -> Seconds:
    """Seconds of the quickest of several runs."""
    return Seconds(min(timeit.repeat(work, number=1, repeat=times)))


def trained(losses: Callable[[Any, int], list[float]], runs: Mapping[str, Any]) -> dict[str, list[list[float]]]:
    """Name → what `losses(run, seed)` returns for each of three seeds; two ranks share the work."""
    todo = [(name, seed) for name in runs for seed in range(3)]

    def share() -> dict[tuple[str, int], list[float]]:
        return {(name, seed): losses(runs[name], seed) for name, seed in todo[torch.distributed.get_rank() :: 2]}

    first, second = ranks.run(share, world_size=2, diagnose=False, timeout_s=300)
    found = first | second
    return {name: [found[name, seed] for seed in range(3)] for name in runs}


def report(curves: Mapping[str, list[list[float]]], below: float = 2.0) -> None:
    """Print each name's gap to "no delay" at the end, and the step at which each run's mean of 20 is below `below`."""
    for name, runs in curves.items():
        gap = sum(run[-1] - usual[-1] for run, usual in zip(runs, curves["no delay"])) / len(runs)
        steps = [next((step for step, x in enumerate(run, 19) if x < below), None) for run in runs]
        print(f"{name:<24} {gap:+.2f} nats at the end; below {below:g} nats after steps", *steps)


def highest_rss() -> int:
    """The most bytes of memory that this process has had from the system, so far."""
    if sys.platform == "win32":
        from psutil import Process

        return Process().memory_info().peak_wset
    from resource import RUSAGE_SELF, getrusage

    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def memory_of(kind: Callable[[], tuple[nn.Module, Callable[[], object]]]) -> tuple[Bytes, Bytes]:
    """Take two steps with the model and the step that `kind` makes: bytes of tensors at the peak, rise of the RSS."""
    before, stories = highest_rss(), text.stories(seed=0)
    with measure.memory() as record:
        model, step = kind()
        for number in range(2):
            model(*stories.batch(seed=0, step=number, rank=0, batch_size=4, context=32)).backward()
            step()
    return record.peak.total, Bytes(highest_rss() - before)
