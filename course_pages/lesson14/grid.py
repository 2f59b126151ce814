"""The runs that lesson 14 fits its law to: GPTs of nine widths on Zipf's words, at five budgets, and runs beside them.

`course train-grid` makes the runs and writes each as it ends; the lesson reads `runs.json`, and repeats a few of them.
A run belongs to its `Job` alone: the same on every day and at any load, though not on every kind of processor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.lexicon import Lexicon
from course_lib.model.text import Batch
from course_lib.predict.laws import Runs

STORED = Path(__file__).parent / "runs.json"
CONTEXT, HELD_OUT, JUDGED = 32, 10**6, 4096
"""Bytes of a window; the seed of the windows that judge a model; the number of these windows."""

WIDTHS = {
    3e10: (8, 12, 16, 20),
    6e10: (8, 12, 16, 20, 24, 32),
    1.2e11: (12, 16, 20, 24, 32, 40),
    2.4e11: (12, 16, 20, 24, 32, 40, 48),
    4.8e11: (16, 20, 24, 32, 40, 48, 64),
}
"""Budget in FLOPs → the widths that share it out in their own ways between parameters and tokens."""


@dataclass(frozen=True)
class Job:
    """One run: everything that its result depends on."""

    width: int  # of the GPT, in features
    budget: float  # C in FLOPs; the run gets C / 6N tokens
    rate: float = 0.02  # the learning rate after the warm-up
    seed: int = 0  # of weights and text
    repeats: int = 1  # readings of the same text: the batches begin again after 1/repeats of the steps

    @property
    def config(self) -> GPTConfig:
        """The GPT: two layers, bytes & 31 as its 32 tokens."""
        heads = max(1, self.width // 16)
        return GPTConfig(2, self.width, heads, 32, CONTEXT, norm="rmsnorm", bias=False)

    @property
    def batch_size(self) -> int:
        """Windows in a step: as many tokens in a step as there are steps."""
        return max(1, round(math.sqrt(self.budget / 6 / parameters(self.config)) / CONTEXT))

    @property
    def steps(self) -> int:
        """Steps, each of `batch_size` windows."""
        return round(self.budget / 6 / parameters(self.config) / (self.batch_size * CONTEXT))


def parameters(config: GPTConfig, embeddings: bool = True) -> int:
    """Parameters of a GPT without biases, counted by name; `embeddings`: with those of tokens and positions."""
    tables = (config.vocab_size + config.context) * config.width
    return config.layers * (12 * config.width**2 + 2 * config.width) + config.width + embeddings * tables


TEN_TIMES = Job(64, 4.8e12)
"""The run that the page predicts before it opens the result: ten times the largest budget of the grid."""

THE_GRID = [Job(width, budget) for budget, widths in WIDTHS.items() for width in widths]
RATES = [Job(width, 1.2e11, rate) for width in (12, 24, 40) for rate in (0.01, 0.04)]
SEEDS = [
    Job(width, budget, seed=seed) for budget in (3e10, 6e10, 1.2e11) for width in WIDTHS[budget] for seed in (1, 2)
]
AGAIN = [Job(32, 1.2e11, seed=seed, repeats=repeats) for repeats in (4, 16) for seed in (0, 1, 2)]
ALL = [*THE_GRID, TEN_TIMES, *RATES, *SEEDS, *AGAIN]
"""The grid, the run ten times as large, other learning rates, other seeds, and text that comes 4 or 16 times."""


@cache
def lexicon() -> Lexicon:
    """The text of all runs."""
    return Lexicon()


@cache
def judge(windows: int = JUDGED) -> tuple[Int[Tensor, "windows seq"], Int[Tensor, "windows seq"], float]:
    """The held-out windows, inputs and targets, and the ideal reader's mean loss on just these bytes."""
    inputs, targets = lexicon().batch(HELD_OUT, 0, 0, windows, CONTEXT)
    texts = torch.cat([inputs[:, :1], targets], 1).to(torch.uint8)
    nats = [nat for each in texts for nat in lexicon().ideal_nats(bytes(each.tolist()))]
    return inputs & 31, targets & 31, sum(nats) / len(nats)


def train(job: Job) -> dict[str, Any]:
    """Train the job's GPT and judge it.

    Adam with β = (.9, .95), 5 % of warm-up, a linear decay to zero, gradients clipped to a length of 1. Returns the
    job, N, D, "loss" on the held-out windows, and "early", read on the way: tokens (powers of two) → loss.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in the same order on any number of cores
    try:
        model = GPT(job.config, seed=job.seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=job.rate, betas=(0.9, 0.95), eps=1e-9, fused=True)
        early: dict[int, float] = {}
        mark = 2**16
        for step, (inputs, targets) in enumerate(_batches(job)):
            warm = min(1, (step + 1) / (0.05 * job.steps))
            optimizer.param_groups[0]["lr"] = job.rate * warm * (1 - step / job.steps)
            optimizer.zero_grad()
            model(inputs, targets).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if (step + 1) * inputs.numel() >= mark and mark <= job.steps * inputs.numel() / 2 and job.budget >= 4.8e11:
                early[mark], mark = loss(model, JUDGED // 4), 2 * mark
        made = {"N": parameters(job.config), "D": job.steps * job.batch_size * CONTEXT}
        return asdict(job) | made | {"loss": loss(model), "early": early}
    finally:
        torch.set_num_threads(threads)


def _batches(job: Job) -> Iterator[Batch]:
    different = max(1, job.steps // job.repeats)
    for step in range(job.steps):
        inputs, targets = lexicon().batch(job.seed, step % different, 0, job.batch_size, CONTEXT)
        yield inputs & 31, targets & 31


@torch.no_grad()
def loss(model: GPT, windows: int = JUDGED) -> float:
    """Mean loss in nats per byte on the first `windows` of the held-out windows."""
    inputs, targets, _ = judge(windows)
    parts = zip(inputs.split(512), targets.split(512), strict=True)
    return sum(model(x, y).item() * len(x) for x, y in parts) / windows


def key(job: Job) -> str:
    """The job's name in the file of results."""
    return " ".join(f"{name}={value:g}" for name, value in asdict(job).items())


@cache
def stored(path: Path = STORED) -> dict[str, Any]:
    """The contents of `path`: "about", the machine and versions of the runs, and "runs", key → result."""
    return json.loads(path.read_text("utf-8"))


def as_runs(jobs: Sequence[Job], embeddings: bool = True, path: Path = STORED) -> Runs:
    """Stored results as arrays; without `embeddings` N counts the blocks and the last norm alone."""
    rows = [(job, stored(path)["runs"][key(job)]) for job in jobs]
    return Runs(*np.array([(parameters(job.config, embeddings), run["D"], run["loss"]) for job, run in rows]).T)


def read_early() -> Runs:
    """Losses on the way of the runs of the largest budget, as if each reading were the end of a run.

    A reading is on a quarter of the windows: the ideal reader's loss on these is replaced by that on all.
    """
    long = [job for job in THE_GRID if job.budget == max(WIDTHS)]
    read = [(parameters(job.config), *each) for job in long for each in stored()["runs"][key(job)]["early"].items()]
    moved = judge()[2] - judge(JUDGED // 4)[2]
    kept = [(n, float(at), loss + moved) for n, at, loss in read if 6 * n * float(at) > min(WIDTHS)]
    return Runs(*np.array(kept).T)
