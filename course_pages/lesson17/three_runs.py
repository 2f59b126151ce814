"""Lab 17's clusters: bytes and seconds of a layout by the lab's formulas, as one number or as arrays of many layouts.

The formulas are simpler than the planner's (`course_lib.predict.planner`), and a cluster of the lab obeys them exactly,
with an efficiency and with link speeds that a plan must find out by probes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np

Amount = Any
"""A number, or an array of one number for each layout."""


class Run(NamedTuple):
    """A model without biases, and the batch of a step; `experts` MLPs of `hidden` stand in each block."""

    layers: int
    width: int
    heads: int
    hidden: int
    vocab: int
    seq: int  # tokens of a sequence
    batch: int  # sequences of a step, on all GPUs together
    experts: int = 1
    top_k: int = 1  # experts that a token meets


class Cluster(NamedTuple):
    """GPUs in machines, by the data sheet."""

    gpus: int
    node: int  # GPUs of a machine
    memory_gib: float  # GiB that a process can fill
    sparse_peak: float  # FLOP/s with 2:4 sparsity, as data sheets print it: twice the dense peak


class Machine(NamedTuple):
    """Constants of a cluster that no data sheet has."""

    efficiency: float  # of products, over the dense peak
    link: float  # bytes a second of a GPU inside a machine
    card: float  # bytes a second of a GPU between machines
    fixed: float  # seconds of each step, whatever its size


class Layout(NamedTuple):
    """One way to cut a run."""

    tensor: Amount
    pipeline: Amount
    data: Amount
    context: Amount
    expert: Amount
    zero: Amount
    rows: Amount  # sequences of a micro-batch
    recompute: Amount

    @property
    def copies(self) -> Amount:
        """Ranks that hold the same shared weights."""
        return self.data * self.context * self.expert


def legal(run: Run, cluster: Cluster) -> list[tuple[int, int, int, int, int, int]]:
    """All (tensor, pipeline, data, context, expert, rows) that divide what they cut, in order."""
    found, seq = [], run.seq
    for t, p, c, e in product(*map(_divisors, (run.heads, run.layers, seq, run.experts))):
        d, rest = divmod(cluster.gpus, t * p * c * e)
        apart = t <= cluster.node and cluster.node % t or t > cluster.node and t % cluster.node
        if rest or apart or (c > 1 and seq // c < 2048) or run.batch % (d * e):
            continue
        found += [(t, p, d, c, e, rows) for rows in _divisors(run.batch // (d * e))]
    return sorted(found)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def layouts(run: Run, cluster: Cluster) -> Layout:
    """All legal layouts as arrays, with each stage of ZeRO, with recompute and without."""
    meshes = np.array(legal(run, cluster)).reshape(-1, 6).repeat(8, 0)
    t, p, d, c, e, rows = meshes.T
    zero, recompute = (np.tile(each, len(t) // 8) for each in np.divmod(np.arange(8), 2))
    return Layout(t, p, d, c, e, zero, rows, recompute)


def micro_batches(run: Run, layout: Layout) -> Amount:
    """Number of micro-batches of a step on each rank."""
    return run.batch // (layout.data * layout.expert * layout.rows)


class Held(NamedTuple):
    """Bytes of a GPU of the first stage and of the last, in parts; a part that differs between them is a pair."""

    shared: tuple[Amount, Amount]  # states of weights that all copies hold, embedding and head among them
    experts: Amount  # states of MLPs
    kept: Amount  # activations of one micro-batch in the stage's blocks
    flight: tuple[Amount, Amount]  # micro-batches whose activations are kept
    again: Amount  # a block that is recomputed
    gathered: Amount  # a block that ZeRO-3 gathers
    logits: tuple[Amount, Amount]

    @property
    def stages(self) -> tuple[Amount, Amount]:
        """Bytes of the first stage and of the last."""
        first, last = (
            self.shared[n] + self.experts + self.kept * self.flight[n] + self.again + self.gathered + self.logits[n]
            for n in (0, 1)
        )
        return first, last


def parameters(run: Run, layout: Layout) -> tuple[Amount, Amount, Amount]:
    """Parameters of one block on a rank, shared and in MLPs, and of the embedding, which the head equals."""
    mlps = 2 * run.width * run.hidden * run.experts / layout.expert / layout.tensor
    return 4 * run.width**2 / layout.tensor, mlps, run.vocab * run.width / layout.tensor


def held(run: Run, layout: Layout) -> Held:
    """Bytes of the fullest GPUs, those of the first stage and of the last."""
    each, (block, mlps, table) = layout, parameters(run, layout)
    one = each.pipeline == 1
    blocks, tokens = run.layers / each.pipeline, each.rows * run.seq / each.context
    shared = (blocks * block + table * (1 + one)) * state_bytes(each, each.copies)
    whole = tokens * (18 * run.width + 4 * run.top_k * run.hidden) / each.tensor
    kept = np.where(each.recompute, 2 * run.width * tokens / each.tensor, whole)
    logits = 4 * tokens * run.vocab / each.tensor
    return Held(
        shared=(shared, shared), experts=blocks * mlps * state_bytes(each, each.data * each.context),
        kept=blocks * kept, flight=(np.minimum(micro_batches(run, each), each.pipeline), 1),
        again=np.where(each.recompute, whole, 0), gathered=np.where(each.zero == 3, 2 * (block + mlps), 0),
        logits=(logits * one, logits),
    )  # fmt: skip


def state_bytes(layout: Layout, copies: Amount) -> Amount:
    """Bytes of each parameter's states: weights, gradients, Adam's three numbers."""
    return sum(size / np.where(layout.zero >= stage, copies, 1) for size, stage in ((2, 3), (4, 2), (12, 1)))


class Taken(NamedTuple):
    """Work of a step on a GPU: FLOPs and bytes of one block and one micro-batch, both passes, and bytes of a step."""

    flops: Amount
    head: Amount
    tensor: Amount
    context: Amount
    expert: Amount
    data: Amount


def taken(run: Run, layout: Layout) -> Taken:
    """FLOPs and bytes sent of each part."""
    each, (block, mlps, table) = layout, parameters(run, layout)
    t, c, e, h = each.tensor, each.context, each.expert, run.width
    tokens, m, forwards = each.rows * run.seq / c, micro_batches(run, each), 1 + each.recompute
    forward = tokens * (8 * h**2 + 4 * run.top_k * h * run.hidden + 2 * run.seq * h) / t
    stream = 2 * tokens * h
    held_shared = run.layers / each.pipeline * block + table * (1 + (each.pipeline == 1))
    each_byte = np.choose(each.zero, [8 + 0 * m, 6 + 0 * m, 4 * m + 2, 8 * m])
    shares = [(group - 1) / group for group in (each.copies, each.data * c)]
    return Taken(
        flops=(2 + forwards) * forward, head=6 * tokens * h * run.vocab / t,
        tensor=2 * (1 + forwards) * 2 * (t - 1) / t * stream, context=(2 + forwards) * (c - 1) * 2 * stream / t,
        expert=2 * (1 + forwards) * run.top_k * (e - 1) / e * stream / t,
        data=each_byte * (held_shared * shares[0] + run.layers / each.pipeline * mlps * shares[1]),
    )  # fmt: skip


def seconds(run: Run, layout: Layout, cluster: Cluster, machine: Machine, work: Taken | None = None) -> Amount:
    """Seconds of a step: all micro-batches through all stages, then the data axis, and a fixed time.

    `work` stands in the place of that of the lab's formulas.
    """
    each, work = layout, work or taken(run, layout)
    rate = machine.efficiency * cluster.sparse_peak / 2

    def speed(ranks: Amount) -> Amount:
        return np.where(ranks <= cluster.node, machine.link, machine.card)

    inner = each.tensor * each.context
    block = work.flops / rate + work.tensor / speed(each.tensor) + work.context / speed(inner)
    block = block + work.expert / speed(inner * each.expert)
    m = micro_batches(run, each)
    passes = (m + each.pipeline - 1) * run.layers / each.pipeline * block + m * work.head / rate
    return passes + work.data / speed(each.tensor * each.copies) + machine.fixed


class Judge(NamedTuple):
    """A judge's knowledge of a cluster: all layouts, whether each fits, their seconds, probes, and refused probes."""

    layouts: Layout
    fit: np.ndarray
    seconds: np.ndarray
    asked: list[Layout]
    refused: list[str]


PROBES = 8
"""Steps that a plan may try."""
NOISE = 0.01
"""Standard deviation of the log of a probe's seconds."""


def simulator(run: Run, cluster: Cluster, machine: Machine, seed: int) -> tuple[Callable[[Layout], float], Judge]:
    """A probe, and the judge. A probe of an illegal layout, or one too many, raises and is noted."""
    every, draw = layouts(run, cluster), np.random.default_rng(seed)
    fit = np.maximum(*held(run, every).stages) <= cluster.memory_gib * 2**30
    judge = Judge(every, fit, seconds(run, every, cluster, machine), [], [])
    places = {place: n for n, place in enumerate(zip(*(column.tolist() for column in every)))}

    def probe(layout: Layout) -> float:
        """Seconds of a step of this layout, with noise; MemoryError where it does not fit."""
        key = tuple(map(int, layout))
        problem = f"after {PROBES} probes, one more" if len(judge.asked) >= PROBES else ""
        problem = problem if key in places else f"not a legal layout: {Layout(*key)}"
        if problem:
            judge.refused.append(problem)
            raise ValueError(f"the cluster refuses this: {problem}")
        judge.asked.append(Layout(*key))
        if not fit[places[key]]:
            raise MemoryError(f"out of memory: {Layout(*key)}")
        return float(judge.seconds[places[key]] * np.exp(NOISE * draw.standard_normal()))

    return probe, judge


def drawn(seed: int, salt: int) -> tuple[Run, Cluster, Machine]:
    """One of the three runs, with sizes and constants of its own: dense, of long context, with experts."""
    draw = np.random.default_rng([salt, seed])

    def one(*these: int) -> int:
        return int(draw.choice(these))

    machine = Machine(*(float(np.exp(draw.uniform(*np.log(ends)))) for ends in _RANGES))
    kind, heads, vocab = seed % 3, one(32, 40, 48, 56, 64), 480 * int(draw.integers(60, 270))
    width, node, fillable = heads * 16 * int(draw.integers(6, 10)), one(4, 8, 16), round(draw.uniform(0.92, 0.97), 3)
    if kind == 0:
        gpus, memory, peak = one(256, 512), 40 * one(1, 2), 624e12
        seq, batch = 512 * int(draw.integers(4, 9)), 64 * int(draw.integers(12, 25))
        run = Run(one(48, 60, 64, 80, 96), width, heads, 4 * width, vocab, seq, batch)
    elif kind == 1:
        gpus, memory, peak = one(64, 128), one(64, 80), 1979e12  # so little memory that recompute is best in many
        seq, batch = 8192 * int(draw.integers(12, 33)), 8 * int(draw.integers(3, 9))
        run = Run(one(30, 32, 36, 40), width, heads, 4 * width, vocab, seq, batch)
    else:
        gpus, memory, peak = one(128, 256), 80, one(1979, 4500) * 1e12
        sizes = one(24, 28, 32, 36), width, heads, 2 * width, vocab, 4096, 64 * int(draw.integers(6, 17))
        run = Run(*sizes, experts=one(8, 12, 16), top_k=one(1, 2, 3))
    return run, Cluster(gpus, node, fillable * memory, peak), machine


_RANGES = ((0.3, 0.65), (60e9, 350e9), (3e9, 45e9), (0.01, 0.5))
