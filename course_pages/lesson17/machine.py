"""A small model of this machine: rates at which ranks compute and send, and the quickest layout of a training.

    machine = calibrate(training)                                # about ten seconds of 1, 2 and 4 ranks at work
    rank_layouts(training, layouts(training, 4), machine)        # the quickest first

Ranks share cores where there are more ranks than cores, and two clocks keep that apart. A rank's computing is measured
in seconds of the processor, without other programs, while p ranks work at once (two threads of one core are slower
than two cores). A message is measured by both clocks: the wall's, which contains the peer's wait for a
core, and the processor's, since copies and system calls are work as well. With a core for each rank a step takes its
critical path. On fewer, m cores, a step takes no less, nor less than the work of all ranks over m; and, as long as no
core is idle while a rank could use it, no more than work/m + (1 - 1/m)·path (Graham 1969, "Bounds on Multiprocessing
Timing Anomalies"). So a pipeline's bubble costs less there: a rank that waits leaves its core to another. While a
message is on its way and no core is busy with it, none can shorten the path: that part of the path counts whole.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from course_kit import ranks
from course_kit.units import Bytes, Seconds
from course_lib.model.gpt import GPT
from course_lib.parallel.mesh import Mesh, process_groups
from course_lib.parallel.tensor_gpt import ParallelGPT
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.parallel.zero3 import Zero3
from course_lib.predict.flops import step_flops
from course_lib.predict.memory import block_activations, block_input, model_states, rank_activations
from course_lib.predict.pipeline import bubble, in_flight
from course_lib.predict.rank_traffic import data_traffic, rank_traffic
from course_lib.predict.setup import Setup
from course_lib.predict.tensors import rank_parameters
from course_lib.predict.traffic import Link, all_reduce, fit_link
from course_lib.predict.zero import unit_buffers
from course_pages.lesson17.capstone import Layout, Training

FREE = Link(Seconds(0.0), 0.0)
SIZES = (256, 2**18)
"""Numbers in the two messages that are timed: 1 KiB and 1 MiB."""


class Pace(NamedTuple):
    """Costs of a rank's work, while others do the same: constants of this machine.

    All but `link` are measured in seconds of the processor.
    """

    launch_s: float  # of a block (or the head), forward and backward, whatever its size: Python, small operations
    cut_launch_s: float  # the same, of layers that are cut over tensor ranks
    unit_launch_s: float  # ZeRO-3's addition to a launch: gathering, freeing and reducing a unit, but for its messages
    flops_per_s: float  # of products and all that grows with them
    update_s: float  # of Adam, for a parameter
    zero_update_s: float  # the same in ZeRO-1 and 2, with all that they do to gradients and weights but for messages
    link: Link  # between the ranks
    handling: Link  # of the same messages, in seconds of the processor


class Machine(NamedTuple):
    """A calibrated machine."""

    cores: int
    paces: dict[int, Pace]  # by the number of ranks at work at once


class Predicted(NamedTuple):
    """Predicted costs of a layout: the seconds of a step; bytes of the fullest rank, and of the one that sends most."""

    layout: Layout
    seconds: Seconds
    peak: Bytes
    sent: Bytes


def calibrate(training: Training, world_sizes: Sequence[int] = (1, 2, 4)) -> Machine:
    """Measure the pace of so many ranks at once, each with the whole GPT: a few seconds for each number of ranks."""
    paces = dict[int, Pace]()
    for n in world_sizes:  # on the CPU, where the capstone trains: where each rank has a GPU, its batch would lie there
        with ranks.Ranks(n, backend="gloo", diagnose=False) as pool:
            paces[n] = pool.run(measure_pace, training)[0]
    return Machine(count_cores(), paces)


def count_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use; in a container with a quota of time, as many as the quota is worth."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, limit.read_text("ascii").split())
    except (OSError, ValueError):  # no such file, or "max"
        return here
    return max(1, min(here, round(quota / period)))


def measure_pace(training: Training, seconds: float = 2.0) -> Pace:
    """A rank's pace, while all work. All ranks must call."""
    torch.set_num_threads(1)
    config, n, rows = training.config, dist.get_world_size(), min(8, training.batch_size)
    (inputs, targets), (link, handling) = training.batch(0), measure_links(seconds)
    t = math.gcd(config.heads, n)
    group = process_groups(Mesh({"data": n // t, "tensor": t}))["tensor"]
    model, cut, sharded, replica = GPT(config), ParallelGPT(GPT(config), group), Zero3(GPT(config)), GPT(config)
    optimizer, zero = torch.optim.Adam(model.parameters()), ZeroOptimizer(replica.parameters(), torch.optim.Adam)

    def both_ways(model: nn.Module, rows: int = 1) -> None:
        model(inputs[:rows], targets[:rows]).backward()

    both_ways(replica)
    calls = {
        "few": lambda: both_ways(model),
        "many": lambda: both_ways(model, rows),
        "update": optimizer.step,
        "zero": zero.step,
        "cut": lambda: both_ways(cut),
        "sharded": lambda: (both_ways(sharded), sharded.synchronize(), sharded.zero_grad()),
    }
    took = {name: of_processor for name, (_, of_processor) in time_in_turn(calls, seconds).items()}
    setups = {"few": Setup(config, 1), "many": Setup(config, rows), "cut": Setup(config, 1, tensor=t)}
    setups["sharded"] = Setup(config, n, micro_batch=1, data=n, zero=3)
    setups["zero"] = Setup(config, n, data=n, zero=1)
    flops = {name: float(step_flops(each)) / each.tensor / each.data for name, each in setups.items()}
    per_flop = (took["many"] - took["few"]) / (flops["many"] - flops["few"])
    sent = {name: float(handling.seconds(messages(each, 0))) for name, each in setups.items()}
    launch, of_cut, of_sharded = (
        (took[name] - flops[name] * per_flop - sent[name]) / (config.layers + 1) for name in ("few", "cut", "sharded")
    )
    updates = took["update"], took["zero"] - sent["zero"]
    update, of_zero = (max(0.0, each) / sum(p.numel() for p in model.parameters()) for each in updates)
    launch, of_cut, of_unit = (max(0.0, each) for each in (launch, of_cut, of_sharded - launch))
    return Pace(launch, of_cut, of_unit, 1 / per_flop, update, of_zero, link, handling)


def measure_links(seconds: float) -> tuple[Link, Link]:
    """α and β between all ranks, by the wall's clock and by the processor's, from all-reduces of two sizes.

    All ranks must call.
    """
    if (world_size := dist.get_world_size()) == 1:
        return FREE, FREE
    sent = {n: torch.zeros(n) for n in SIZES}
    took = time_in_turn({str(n): partial(dist.all_reduce, x) for n, x in sent.items()}, seconds)
    paths = {n: all_reduce(4 * n, world_size).path for n in SIZES}
    wall, processor = (
        fit_link([(path.messages, path.n_bytes, took[str(n)][clock]) for n, path in paths.items()]) for clock in (0, 1)
    )
    return wall, processor


def time_in_turn(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, tuple[float, float]]:
    """Seconds of each call, which all ranks begin together: medians of two clocks. All ranks must call.

    Returns:
        The wall's seconds of the slowest rank, and the processor's of a rank, a mean over the ranks.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    end, left = time.perf_counter() + seconds, torch.ones(1)
    while left > 0:  # on every rank alike
        for name, call in calls.items():
            dist.barrier()
            wall, processor = time.perf_counter(), time.process_time()
            call()
            times[name].append((time.perf_counter() - wall, time.process_time() - processor))
        left.fill_(end - time.perf_counter())
        dist.all_reduce(left, dist.ReduceOp.MIN)
    seen = torch.tensor([each[1:] or each for each in times.values()], dtype=torch.float64)  # the first warms up
    walls, processors = (clock.contiguous() for clock in seen.unbind(-1))
    dist.all_reduce(walls, dist.ReduceOp.MAX)
    dist.all_reduce(processors)
    medians = [walls.quantile(0.5, dim=1), processors.quantile(0.5, dim=1) / dist.get_world_size()]
    return dict(zip(times, zip(*(each.tolist() for each in medians))))


def layouts(training: Training, world_size: int, zero: Sequence[int] = (0, 1, 3), **how: object) -> list[Layout]:
    """The legal layouts on so many ranks, for 4 ranks at most 11; `how`: other fields of all layouts."""
    sizes = [n for n in range(1, world_size + 1) if world_size % n == 0]
    found = (Layout(*each, **how) for each in itertools.product(sizes, sizes, sizes, zero))  # type: ignore[arg-type]
    return [each for each in found if each.mesh.size == world_size and is_legal(training, each)]


def is_legal(training: Training, layout: Layout) -> bool:
    """Whether the sizes divide, ZeRO has ranks to cut over, and stages 2 and 3 of ZeRO have no pipeline."""
    if (layout.zero and layout.data == 1) or (layout.zero > 1 and layout.pipeline > 1):
        return False
    if training.config.layers % layout.pipeline:  # the formulas below know equal stages
        return False
    try:
        training.setup(layout)
    except ValueError:
        return False
    return True


def rank_layouts(training: Training, candidates: Sequence[Layout], machine: Machine) -> list[Predicted]:
    """Predicted costs of each layout, the quickest first."""
    predicted = []
    for layout in candidates:
        setup, stages = training.setup(layout), range(layout.pipeline)
        sent = max(sum(each.total_bytes for each in rank_traffic(setup, stage).values()) for stage in stages)
        peak = max(predict_peak(setup, stage) for stage in stages)
        predicted.append(Predicted(layout, predict_seconds(setup, machine), peak, Bytes(sent)))
    return sorted(predicted, key=lambda each: each.seconds)


def predict_seconds(setup: Setup, machine: Machine) -> Seconds:
    """Seconds of a step: the critical path with its messages; where ranks share cores, the middle of Graham's bounds.

    Raises:
        ValueError: the machine was not measured on so many ranks.
    """
    n = int(setup.world_size)
    if n not in machine.paces:
        raise ValueError(f"{n} ranks, but the machine was measured on {list(machine.paces)}: calibrate with {n}, too")
    pace = machine.paces[n]
    computes = [busy(setup, stage, pace) for stage in range(setup.pipeline)]
    sent = [messages(setup, stage) for stage in range(setup.pipeline)]
    talks = max(float(pace.link.seconds(each)) for each in sent)
    handled = [float(pace.handling.seconds(each)) for each in sent]
    chain = max(computes) * (1 + float(bubble(setup).over_ideal))
    if machine.cores >= n:
        return Seconds(chain + talks)
    chain += max(handled)  # by the processor's clock: the wall's contains the wait for a core, which is in `work`
    idle = max(0.0, talks - max(handled) * n / machine.cores)  # the message is on its way, and no core can help
    work = (sum(computes) + sum(handled)) / setup.pipeline * n / machine.cores
    least, most = max(chain + idle, work), work + (1 - 1 / machine.cores) * chain + idle
    return Seconds((least + max(least, most)) / 2)


def busy(setup: Setup, stage: int, pace: Pace) -> float:
    """Seconds that a rank of the stage computes in a step: launches, products, the update of its parameters."""
    has_head, replicas = stage == setup.pipeline - 1, setup.data * setup.tensor
    head = 6 * setup.batch_size * setup.seq * setup.gpt.width * setup.gpt.vocab_size
    flops = (step_flops(setup) - head) / setup.pipeline / replicas + has_head * head / replicas
    again = {"none": 1, "selective": 1, "full": 4 / 3}[setup.recompute]
    launches = setup.micro_batches * (again * setup.gpt.layers / setup.pipeline + has_head)
    launch = (pace.cut_launch_s if setup.tensor > 1 else pace.launch_s) + (setup.zero == 3) * pace.unit_launch_s
    updated = rank_parameters(setup, stage)  # in stage 3 of ZeRO its part of them
    update = pace.zero_update_s if setup.zero in (1, 2) else pace.update_s
    return launches * launch + flops / pace.flops_per_s + updated * update


def messages(setup: Setup, stage: int) -> tuple[int, int]:
    """Messages that a rank of the stage waits for, one after the other, and the bytes that it sends, in a step."""
    t, d, m, blocks = setup.tensor, setup.data, int(setup.micro_batches), setup.gpt.layers // setup.pipeline
    is_first, is_last = stage == 0, stage == setup.pipeline - 1
    sums = (6 if setup.recompute == "full" else 4) * blocks + is_last  # all-reduces, of 2(t-1) messages each
    waits = m * (2 * sums + is_first + is_last) * (t - 1)  # and all-gathers, of t-1
    waits += m * ((not is_first) + (not is_last))  # the stream from one neighbour, its gradient from the other
    if d > 1:
        units = blocks + 1 if setup.zero == 3 else 1
        waits += sum(int(each.messages) for each in data_traffic(setup, stage, units).values())
        waits += 2 * (d - 1) * (2 if setup.zero else 1)  # the loss; with ZeRO also which weights had gradients
    waits += 2 * (setup.pipeline - 1)  # the loss, to everyone
    waits += setup.gpt.tied and is_first != is_last  # the tied table's gradient, from the other end
    return waits, sum(int(each.total_bytes) for each in rank_traffic(setup, stage).values())


def predict_peak(setup: Setup, stage: int) -> Bytes:
    """The most bytes that are alive at once on a rank: states, activations in flight, and tensors of an operation.

    The worst moment is at the beginning of a backward pass, in the last block's MLP or in the loss. Gradients lie there
    already, unless it is the first backward pass, with all micro-batches in flight. ZeRO-3 has R + 3W of whole units
    then (lesson 10), and plain replicas keep a bucket, a second set of gradients, from the first step on.
    """
    states, each = model_states(setup, stage), int(rank_activations(setup, stage))
    kept, gradients = int(in_flight(setup, stage)), int(states.gradients)
    most = int(states.total) - gradients + max(kept * each, (kept - 1) * each + gradients)
    if kept < setup.micro_batches:
        most = int(states.total) + kept * each
    most += _passing(setup, stage)
    if setup.data > 1 and not setup.zero:
        most += gradients
    if setup.zero == 3:
        ahead, alone = (int(unit_buffers(setup, prefetch, stage).parameters) for prefetch in (True, False))
        most += 2 * ahead - alone  # 2(R + 2W) - (R + W)
    return Bytes(most)


def _passing(setup: Setup, stage: int) -> int:
    """Bytes that live for an operation or two at the worst moment, and messages that have come and wait."""
    stream, logits = (setup.weight_bytes * setup.tokens * n for n in (setup.gpt.width, setup.gpt.vocab_size))
    wide = setup.weight_bytes * setup.gpt.mlp_width * (setup.tokens + setup.gpt.width) // setup.tensor
    at_block = wide + 2 * stream  # gradients of a hidden layer and of its weight, of the stream and of a branch
    if setup.recompute == "full":
        at_block += int(block_activations(setup)) - int(block_input(setup))
    is_last = stage == setup.pipeline - 1
    return max(2 * logits, at_block - logits) * is_last + at_block * (not is_last) + 2 * stream * (setup.pipeline > 1)
