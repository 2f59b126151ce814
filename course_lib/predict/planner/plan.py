"""The legal ways to train a model on a cluster, with their seconds and their bytes, the fastest that fits first.

The best plan, the line that starts the plan, and why others are not legal:

    plans = predict.plan(zoo.LLAMA3_70B, Cluster(hardware.H100_80GB, 1024), batch=1024)
    plans.best[0].step_s, plans.best[0].torchrun(), plans.refused
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np

from course_lib.model.zoo import ExpertModel
from course_lib.predict.planner.cost import Cluster, memory, seconds
from course_lib.predict.planner.work import Layouts, work
from course_lib.predict.setup import Config, Setup, Shape, config_of, positive

ZERO, MICRO_BATCHES, CHUNKS = range(4), range(1, 33), range(1, 9)

_FILLED = "that can be filled"


@dataclass(frozen=True)
class Plan:
    """One way to train: the sizes of the mesh axes, the rest of the layout, and the cost.

    `first_gb`, `middle_gb` and `last_gb` are 10^9 bytes of the pipeline's stages; `mfu` is the model's FLOPs, without
    recompute, over the peak; `exposed_s` is the time that sums over data and context ranks add to the step.
    """

    tensor: int
    pipeline: int
    data: int
    context: int
    expert: int
    zero: int
    micro_batch: int
    chunks: int
    recompute: bool
    micro_batches: int
    step_s: float
    bubble_s: float
    exposed_s: float
    mfu: float
    first_gb: float
    middle_gb: float
    last_gb: float
    nodes: int
    node: int

    def torchrun(self, script: str = "train.py") -> str:
        """The command that starts this plan, the same on every node; $HEAD is the first node's name, where several."""
        axes = ("tensor", "pipeline", "data", "context", "expert", "zero", "micro_batch", "chunks")
        said = [f"--{name.replace('_', '-')} {getattr(self, name)}" for name in axes] + ["--recompute"] * self.recompute
        each, meet = f"--nproc-per-node {self.node}", "--rdzv-backend c10d --rdzv-endpoint $HEAD:29500"
        start = f"--standalone {each}" if self.nodes == 1 else f"--nnodes {self.nodes} {each} {meet}"
        return " ".join(["torchrun", start, script, *said])


@dataclass(frozen=True)
class Plans:
    """The result of `plan`: the best plans that fit, the number looked at, and why others are not legal.

    `map` has the fastest that fits of each (tensor, pipeline); `refused` says for each reason how many meshes or plans
    it excludes.
    """

    best: list[Plan]
    map: list[Plan]
    looked_at: int
    refused: dict[str, int]

    def json(self) -> str:
        """All of it, for another program; `Plans.of` reads it."""
        return json.dumps(asdict(self))

    @staticmethod
    def of(text: str) -> Plans:
        """The plans that `json` wrote as text."""
        read = json.loads(text)
        best, fastest = ([Plan(**each) for each in read[name]] for name in ("best", "map"))
        return Plans(best, fastest, read["looked_at"], read["refused"])


def plan(model: Shape, cluster: Cluster, batch: int, seq: int | None = None, keep: int = 100) -> Plans:
    """The fastest plans for a batch of `batch` sequences of `seq` tokens (the model's context) on this cluster.

    Training is in bf16 with fp32 sums and Adam, 18 bytes a parameter before ZeRO. Tensor ranks stay in a node. Tried
    are micro-batches of up to 32 sequences, up to 8 chunks, and whole blocks recomputed or none. Context ranks, by
    powers of two, are tried where a sequence has more than 16,384 tokens.

    Raises:
        ValueError: no plan fits, with the reasons and how often each; a batch or a sequence that is not positive; a
            sequence longer than a GPT's context; an encoder and a decoder.
    """
    config = config_of(model)
    positive(batch=batch)
    seq = Setup(config, 1, seq).seq  # type: ignore[arg-type]  # refused here is what no plan can have
    layouts, refused = legal(config, cluster, batch, seq, contexts=seq > 16_384)
    best, fastest = _priced(config, cluster, seq, layouts, refused, keep) if len(layouts.batch) else ([], [])
    if not best:
        raise ValueError(_no_plan(cluster, batch, seq, refused))
    return Plans(best, fastest, len(layouts.batch), dict(refused.most_common()))


def _no_plan(cluster: Cluster, batch: int, seq: int, refused: Counter[str]) -> str:
    """The reasons why no plan fits, too large a size first, and a remedy."""
    reasons = sorted(refused, key=lambda reason: (_FILLED not in reason, -refused[reason]))[:5]
    told = "\n".join(f"  {refused[reason]:,} times: {reason}" for reason in reasons)
    larger = any(_FILLED in reason for reason in reasons)
    more = "more GPUs, or larger ones, or fewer tokens in a sequence" if larger else "another batch, or number of GPUs"
    return f"no plan on {cluster.gpus} {cluster.gpu.name} for batch={batch}, seq={seq}:\n{told}\ntake {more}"


def legal(config: Config, cluster: Cluster, batch: int, seq: int, contexts: bool) -> tuple[Layouts, Counter[str]]:
    """All layouts whose sizes divide, and how many meshes or layouts each reason excludes."""
    refused: Counter[str] = Counter()
    meshes = [mesh for mesh in _meshes(config, cluster, seq, contexts) if _stands(config, batch, seq, mesh, refused)]
    grid = np.array(list(product(ZERO, MICRO_BATCHES, CHUNKS, (0, 1))), int)
    axes = np.repeat(np.array(meshes, int).reshape(-1, 5), len(grid), 0)
    zero, rows, chunks, full = np.tile(grid, (len(meshes), 1)).T
    t, p, d, c, e = axes.T
    own = batch // (d * e)  # sequences of a rank
    interleaved = chunks > 1
    checks = {
        "the rank's sequences do not split into micro-batches of that size": own % rows != 0,
        "interleaving needs a pipeline": interleaved & (p == 1),
        "the blocks do not split into stages · chunks": interleaved & (config.layers % (p * chunks) != 0),
        "interleaved micro-batches come in groups of the pipeline's size": interleaved & (own // rows % p != 0),
        "ZeRO needs several data ranks, or context ranks": (zero > 0) & (d * c * e == 1),
    }
    fine = np.ones(len(t), bool)
    for reason, wrong in checks.items():
        if count := int((wrong & fine).sum()):
            refused[reason] += count
        fine &= ~wrong
    return Layouts(t, p, d, c, e, zero, rows, chunks, full, np.full(len(t), batch)).take(fine), refused


def _meshes(config: Config, cluster: Cluster, seq: int, contexts: bool) -> list[tuple[int, ...]]:
    """(tensor, pipeline, data, context, expert) with the right product."""
    tensors, pipelines = _divisors(cluster.node), range(1, config.layers + 1)
    cuts = [n for n in (1, 2, 4, 8, 16, 32, 64) if n == 1 or (contexts and seq // n >= 1024)]
    experts = _divisors(config.experts) if isinstance(config, ExpertModel) and config.expert_layers else [1]
    found = []
    for t, p, c, e in product(tensors, pipelines, cuts, experts):
        if cluster.gpus % (t * p * c * e) == 0:
            found.append((t, p, cluster.gpus // (t * p * c * e), c, e))
    return found


def _stands(config: Config, batch: int, seq: int, mesh: tuple[int, ...], refused: Counter[str]) -> bool:
    t, p, d, c, e = mesh
    try:
        dense = not (isinstance(config, ExpertModel) and config.expert_layers)
        Setup(config, batch, seq, tensor=t, pipeline=p, data=d, context=c, expert=e, sequence_parallel=dense and t > 1)
        if -config.layers % p > 2:
            raise ValueError(f"{config.layers} blocks on {p} stages: only the first and the last may have one less")
    except ValueError as problem:
        refused[str(problem)] += 1
        return False
    return True


def _priced(
    config: Config, cluster: Cluster, seq: int, layouts: Layouts, refused: Counter[str], keep: int
) -> tuple[list[Plan], list[Plan]]:
    # the best, and the fastest of each (tensor, pipeline)
    constants, peak = cluster.constants, cluster.gpu.peak("bf16")
    assert constants is not None
    amounts = work(config, seq, layouts)
    held, room = memory(amounts, constants, whole=False), constants.fillable * cluster.gpu.usable
    fits = held.max(1) <= room
    if not fits.all():
        reason = f"more than the {room / 1e9:.1f} GB {_FILLED} of a {cluster.gpu.name}"
        least = "" if fits.any() else f"; the least is {held.max(1).min() / 1e9:.1f} GB"
        refused[reason + least] = int((~fits).sum())
    price = seconds(amounts, constants, peak, cluster.node)
    order = np.flatnonzero(fits)
    order = order[np.argsort(price["step"][order], kind="stable")]
    first_of_each = np.unique(np.stack([layouts.tensor, layouts.pipeline])[:, order], axis=1, return_index=True)[1]
    flops = amounts.layers * (amounts.products + amounts.scores) * 3 / amounts.passes + amounts.head
    done = flops * layouts.micro_batches / layouts.pipeline / peak / price["step"]

    def one(n: int) -> Plan:
        sizes = {name: int(getattr(layouts, name)[n]) for name in Layouts._fields if name not in ("full", "batch")}
        return Plan(
            **sizes, recompute=bool(layouts.full[n]), micro_batches=int(layouts.micro_batches[n]), mfu=float(done[n]),
            step_s=float(price["step"][n]), bubble_s=float(price["bubble"][n]), exposed_s=float(price["data"][n]),
            **dict(zip(("first_gb", "middle_gb", "last_gb"), (held[n] / 1e9).tolist())),
            nodes=max(1, cluster.gpus // cluster.node), node=min(cluster.gpus, cluster.node),
        )  # fmt: skip

    return [one(n) for n in order[:keep]], [one(n) for n in order[first_of_each]]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
