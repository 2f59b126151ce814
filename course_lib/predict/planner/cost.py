"""Seconds of a step's amounts on a machine with its software, and the bytes of the fullest GPU.

    step = max(GEMMs + traffic of tensor ranks, launches) · (m + bubble) + traffic that is not hidden

Every constant is a property of something that can be bought or read: `Constants` names them. They are fitted once, on
published runs, by `python benchmarks/planner.py`, and stand in `constants.json` with date, rows and sources.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from course_lib.model.hardware import GPU
from course_lib.predict.planner.work import Amounts, Stages, Work
from course_lib.predict.setup import positive


@dataclass(frozen=True)
class Constants:
    """A machine with its software. Speeds are those that a GPU reaches, as shares of the peak or bytes a second.

    Attributes:
        gemm_efficiency: of wide matrix products, over the dense peak.
        attention_efficiency: of attention, over the same peak, all pairs of tokens counted though half are masked.
        head_efficiency: of the head, over the same peak, where it stays in 16 bits and blocks have fewer; 0: as blocks.
        hbm_bytes_per_s: of the GPU's own memory, by its data sheet.
        crossings: how often a byte that autograd keeps goes to this memory or comes, for norms, activations and casts,
            which no format of products makes faster; 0 where `half_width` stands for them.
        half_width: features of h/t at which a product runs at half that speed.
        launch_s, launch_tensor_s: in which the CPU starts the kernels of a block, alone and with tensor ranks: a block
            takes no less, however small.
        link_bytes_per_s: inside a node, one direction.
        overlapped: share of the bytes of tensor ranks and stages that are sent behind products.
        nic_bytes_per_s: of a GPU's own network card.
        message_s: of a step of the gradients' ring between nodes, its buckets together: α, where 1/bandwidth is β.
        zero_slowness: how many times as long ZeRO-1 and 2 take to scatter and gather as an all-reduce of as many bytes.
        hidden: share of a step's compute behind which the data axis can send; 0 where published runs cannot tell it.
        fixed_s: of every step, whatever its size: optimizer, logging, loading.
        kept, kept_tensor: bytes that autograd keeps, over the account's; on tensor ranks.
        gradient_bytes: of each parameter: gradients in 16 bits, which autograd makes before they are added to the sums
            in 32, and of which the account has none.
        logit_bytes: of each of the head's results, beyond the account's 4: a copy in 32 bits, its gradient.
        whole_bytes: of each number of the stream that tensor ranks hold whole, where there is no pipeline.
        process_bytes: of a process before it has a tensor.
        fillable: the share of a GPU's usable memory that a run can fill; the rest lies in gaps between its pieces.
    """

    gemm_efficiency: float
    attention_efficiency: float
    half_width: float
    launch_s: float
    launch_tensor_s: float
    link_bytes_per_s: float
    nic_bytes_per_s: float
    hidden: float
    fixed_s: float
    message_s: float = 0.0
    zero_slowness: float = 1.0
    overlapped: float = 0.0
    head_efficiency: float = 0.0
    crossings: float = 0.0
    hbm_bytes_per_s: float = 3.35e12
    kept: float = 1.0
    kept_tensor: float = 1.0
    gradient_bytes: float = 0.0
    logit_bytes: float = 0.0
    whole_bytes: float = 0.0
    process_bytes: float = 0.0
    fillable: float = 1.0


ACCOUNT = {
    name: getattr(Constants, name)
    for name in ("kept", "kept_tensor", "gradient_bytes", "logit_bytes", "whole_bytes", "process_bytes")
}
"""Defaults of `Constants`: with these, memory is the account of `Work` and nothing else."""


@dataclass(frozen=True)
class Cluster:
    """Equal GPUs in nodes. `constants` are those of `constants.json` that were fitted on such GPUs, or your own."""

    gpu: GPU
    gpus: int
    node: int = 8
    constants: Constants | None = None

    def __post_init__(self) -> None:
        positive(gpus=self.gpus, node=self.node)
        if self.gpus > self.node and self.gpus % self.node:
            raise ValueError(f"gpus={self.gpus} do not fill nodes of {self.node}: give a multiple, or another node")
        if self.constants is None:
            object.__setattr__(self, "constants", constants_for(self.gpu))


@cache
def fitted() -> dict[str, Any]:
    """`constants.json`: name of a machine → its constants, with rows and sources."""
    return json.loads(Path(__file__).with_name("constants.json").read_text("utf-8"))["machines"]


def constants_for(gpu: GPU) -> Constants:
    """The constants that were fitted on this GPU's generation; those of the nearest one for others, by its link.

    No card sends faster inside a node than its data sheet says.
    """
    family = "A100" if gpu.link_bytes_per_s < 400e9 else "H100"
    found = Constants(**next(each["constants"] for each in fitted().values() if each["default_for"] == family))
    return replace(found, link_bytes_per_s=min(found.link_bytes_per_s, gpu.link_bytes_per_s))


def seconds(work: Work, constants: Constants, peak: float | Amounts, node: int = 8) -> dict[str, Amounts]:
    """Seconds of a step by layout, and of its parts: {"step", "block", "work", "bubble", "tensor", "data", …}."""
    c, each = constants, work.layouts
    p, v, m = each.pipeline, each.chunks, each.micro_batches
    rate = peak * c.gemm_efficiency / (1 + c.half_width / work.width)
    gemm = work.products / rate + work.scores / (peak * c.attention_efficiency)
    gemm = gemm + c.crossings * work.block_bytes / c.hbm_bytes_per_s
    inner = each.tensor * each.context * each.expert
    tensor = (1 - c.overlapped) * work.tensor_bytes / _speed(c, each.tensor, 1, node)
    around = work.expert_bytes / _speed(c, inner, node, node)
    ring = work.context_bytes / _speed(c, inner, each.tensor, node) - work.scores / (peak * c.attention_efficiency)
    launches = np.where(each.tensor > 1, c.launch_tensor_s, c.launch_s) * work.passes / 3
    block = np.maximum(gemm + tensor + around + np.maximum(0, ring), launches)
    head = work.head / (peak * c.head_efficiency if c.head_efficiency else rate)
    stages = work.blocks * block[:, None] + np.stack([head * (p == 1), 0 * head, head], 1)
    slowest = stages.max(1)
    whole = work.layers * block + head
    pipe = np.where(p > 1, (1 - c.overlapped) * work.pipeline_bytes / _speed(c, inner * each.data * p, node, node), 0.0)
    busy = m * (slowest + pipe)
    bubble = (whole - slowest + (p - 1) * pipe) / v
    across, apart = each.data * inner, each.tensor * each.expert  # context ranks have the same weights
    slowness = np.where((each.zero == 1) | (each.zero == 2), c.zero_slowness, 1)
    sent = work.data_bytes * slowness / _speed(c, across, apart, node)
    rings = np.where(each.zero == 3, 3 * m * work.blocks.max(1), 1)
    sent = sent + np.where(across > node, rings * c.message_s * (each.data * each.context - 1), 0)
    exposed = np.maximum(0, sent - c.hidden * busy)
    parts = {"block": block, "work": busy, "bubble": bubble, "tensor": m * work.layers / p * tensor, "data": exposed}
    return {"step": busy + bubble + exposed + c.fixed_s, **parts}


def _speed(constants: Constants, ranks: Amounts, apart: Amounts | int, node: int) -> Amounts:
    """Bytes a second of a ring that spans `ranks` GPUs, its members `apart` places apart.

    A ring goes at the pace of its slowest link. Between nodes that is the network card, or several: a ring uses as many
    cards as it has members in a node, since NCCL lays as many rings, each of which leaves by another card.
    """
    cards = np.maximum(1, node // apart) * constants.nic_bytes_per_s
    return np.where(ranks <= node, constants.link_bytes_per_s, np.minimum(constants.link_bytes_per_s, cards))


def memory(work: Work, constants: Constants, whole: bool = True) -> Stages:
    """Bytes of the first stage, one in the middle, the last: (n, 3).

    `whole=False` leaves out the stream's copies that tensor ranks could gather again.
    """
    c = constants
    copies = np.where(work.layouts.pipeline == 1, c.whole_bytes, 0.0) if whole else np.zeros(len(work.tokens))
    extra = c.gradient_bytes * work.parameters + c.logit_bytes * work.logits + c.process_bytes
    kept = np.where(work.layouts.tensor > 1, c.kept_tensor, c.kept)[:, None] * work.kept
    return work.states + kept + work.passing + copies[:, None] * work.whole + extra


NAMES = tuple(field.name for field in fields(Constants))
