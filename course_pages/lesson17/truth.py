"""Published training runs as arrays, and the planner's errors on them: the truth table of lesson 17.

`rows.json` holds the runs: models, layouts and measurements, with the source of each. `read` counts their work,
`verdict` compares predictions with measurements.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from course_lib.model.zoo import Architecture
from course_lib.predict.planner.cost import Constants, memory, seconds
from course_lib.predict.planner.work import Layouts, Work, work

ROWS = Path(__file__).with_name("rows.json")


@dataclass(frozen=True)
class Runs:
    """Runs on one kind of machine, an entry for each: their work, and their measurements, NaN where there are none."""

    work: Work
    peak: float  # dense FLOP/s
    node: int  # GPUs that share fast links
    source: np.ndarray
    model: np.ndarray
    gpus: np.ndarray
    seconds: np.ndarray  # of a step
    gigabytes: np.ndarray
    failed: np.ndarray
    clean: np.ndarray  # whether its time measures the layout and not a broken fabric
    illegal: np.ndarray  # whether a stage would have no layer

    def take(self, which: np.ndarray) -> Runs:
        """The runs for which this mask is true."""
        kept = {name: value[which] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        amounts = Work(self.work.layouts.take(which), *(each[which] for each in self.work[1:]))
        return Runs(work=amounts, peak=self.peak, node=self.node, **kept)

    @property
    def timed(self) -> Runs:
        """The runs whose time was measured and is the layout's."""
        return self.take(self.clean & np.isfinite(self.seconds))


class Verdict(NamedTuple):
    """Errors of a prediction, as shares of the measurements."""

    source: str
    n: int
    median: float
    p90: float
    worst: str  # run and error


@cache
def read(rows: Path = ROWS) -> dict[str, Runs]:
    """Machine → its runs, of a file like `rows.json`."""
    table = json.loads(rows.read_text("utf-8"))
    found = {}
    for machine, (peak, node) in table["machines"].items():
        models = [each for each in table["models"] if each["machine"] == machine]
        if not models:
            continue
        works, columns = zip(*(_count(each, table["columns"]) for each in models))
        joined = {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}
        layouts = Layouts(*(np.concatenate(field) for field in zip(*(each.layouts for each in works))))
        amounts = Work(layouts, *(np.concatenate(field) for field in zip(*(each[1:] for each in works))))
        found[machine] = Runs(amounts, peak, node, **joined)
    return found


def left_out() -> dict[str, int]:
    """Source and reason → published rows that are not held against the planner."""
    return json.loads(ROWS.read_text("utf-8"))["left_out"]


def _count(model: dict[str, Any], columns: list[str]) -> tuple[Work, dict[str, np.ndarray]]:
    """The work of one model's runs, and their measurements."""
    config = Architecture(*model["shape"], positions="rotary", tied=model["tied"])
    rows = dict(zip(columns, np.array(model["rows"], float).T))
    names = ("tensor", "pipeline", "data", "context", "expert", "zero", "micro_batch", "chunks", "full", "batch")
    each = Layouts(*(rows[name].astype(int) for name in names))
    n = len(each.batch)
    blocks = rows["first"] > 0  # nanotron cuts by costs, others evenly
    stages = np.stack([rows["first"], rows["most"], rows["last"]], 1).astype(int) if blocks.all() else None
    amounts = work(config, model["seq"], each, stages, sequence_parallel=model["sequence_parallel"])
    narrow = rows["narrow"][:, None]  # gradients of 2 bytes instead of 4, and none besides; ZeRO-1 does not cut them
    states = amounts.states - 2 * narrow * amounts.parameters
    amounts = amounts._replace(states=states, parameters=(1 - narrow) * amounts.parameters)
    amounts = amounts._replace(products=amounts.products * (1 + rows["again"] / amounts.passes) * rows["bits"] / 16)
    said = {"source": np.full(n, model["source"]), "model": np.full(n, model["name"])}
    ranks = each.tensor * each.pipeline * each.data * each.context
    flags = {name: rows[name] == 1 for name in ("failed", "clean", "illegal")}
    return amounts, {**said, "gpus": ranks, "seconds": rows["seconds"], "gigabytes": rows["gigabytes"], **flags}


def step_seconds(runs: Runs, constants: Constants) -> np.ndarray:
    """Predicted seconds of a step."""
    return seconds(runs.work, constants, runs.peak, runs.node)["step"]


def gigabytes(runs: Runs, constants: Constants, gpu_gigabytes: float = 79.0) -> np.ndarray:
    """Predicted GB as rank 0 prints them: of the first stage, with copies of the stream where they fit."""
    with_copies, without = (memory(runs.work, constants, whole)[:, 0] / 1e9 for whole in (True, False))
    return np.where(with_copies < gpu_gigabytes, with_copies, without)


def least_gigabytes(runs: Runs, constants: Constants) -> np.ndarray:
    """The least predicted GB of the fullest stage, which tell whether a run fits."""
    return memory(runs.work, constants, whole=False).max(1) / 1e9


def fixed_utilization(runs: Runs, measured_on: Runs) -> np.ndarray:
    """The rule of thumb beside the planner: 6·N·D (8 with recompute) at the one utilization that fits best."""

    def flops(which: Runs) -> np.ndarray:
        w, each = which.work, which.work.layouts
        inner = each.micro_batches * each.tensor * each.pipeline * each.context * each.data
        return inner * (w.products * w.layers / each.pipeline + w.head / each.pipeline) / which.gpus

    rate = np.median(flops(measured_on) / measured_on.seconds)
    return flops(runs) / rate


def cookbook(runs: Runs) -> np.ndarray:
    """GB by a public calculator: EleutherAI's cookbook, calc/calc_transformer_mem.py (read at 069ae2e), asked kindly.

    The sum has 2 bytes of weights a parameter, over tensor and pipeline ranks; 4 of gradients, from ZeRO-2 on over all
    GPUs; 12 of Adam, from ZeRO-1 on over all GPUs, with a buffer of 5e8 weights; and 34 bytes a token, feature and
    layer. Kindly: with switches that forget the attention scores and cut activations over tensor ranks.
    """
    w, each = runs.work, runs.work.layouts
    h, t, gpus = w.width * each.tensor, each.tensor, runs.gpus
    block = w.products / (2 * w.passes * w.tokens) * t
    parameters = w.layers * block + 2 * w.head * t / (6 * w.tokens)
    states = 2 / (t * each.pipeline) + 4 / np.where(each.zero >= 2, gpus, 1) + 12 / np.where(each.zero, gpus, 1)
    return (parameters * states + 1e9 * (each.zero > 0) + 34 * w.tokens * h * w.layers / t) / 1e9


def predicted(runs: Runs, constants: Constants, measured_on: Runs) -> dict[str, np.ndarray]:
    """Seconds, gigabytes and least gigabytes of each run, and the rule of thumb by the runs `measured_on`."""
    return {
        "seconds": step_seconds(runs, constants), "gigabytes": gigabytes(runs, constants),
        "least": least_gigabytes(runs, constants), "thumb": fixed_utilization(runs, measured_on),
    }  # fmt: skip


def on_one_machine(runs: Runs) -> tuple[np.ndarray, dict[int, str], int]:
    """The 8B model's timed runs on eight GPUs: numbers, the fastest first; names; the number of the eight-stage run."""
    each = runs.work.layouts
    found = np.flatnonzero((runs.model == "llama-like-8B") & (runs.gpus == 8) & np.isfinite(runs.seconds))
    columns = zip(*(field[found] for field in (each.tensor, each.pipeline, each.data, each.zero, each.micro_batch)))
    names = {int(n): "tp {}, pp {}, dp {}, ZeRO-{}, mbs {}".format(*sizes) for n, sizes in zip(found, columns)}
    return found[np.argsort(runs.seconds[found])], names, found[each.pipeline[found] == 8][0]


def stages_of(runs: Runs, number: int) -> list[float]:
    """Blocks of each stage of a run; those between the first and the last have their average."""
    (first, _, last), p, layers = runs.work.blocks[number], runs.work.layouts.pipeline[number], runs.work.layers[number]
    return [layers] if p == 1 else [first, *[(layers - first - last) / max(1, p - 2)] * (p - 2), last]


def verdict(runs: Runs, predicted: np.ndarray, measured: np.ndarray) -> list[Verdict]:
    """The errors by source, over the runs where both are numbers."""
    found = []
    for source in dict.fromkeys(runs.source):
        mine = np.flatnonzero((runs.source == source) & np.isfinite(measured) & np.isfinite(predicted))
        if not len(mine):
            continue
        errors = predicted[mine] / measured[mine] - 1
        worst = np.abs(errors).argmax()
        told = f"{describe(runs, mine[worst])}: {errors[worst]:+.0%}"
        sizes = np.abs(errors)
        found.append(Verdict(str(source), len(mine), float(np.median(sizes)), float(np.percentile(sizes, 90)), told))
    return found


def describe(runs: Runs, number: int) -> str:
    """A run in words: model, GPUs and layout."""
    each = runs.work.layouts
    words = [f"{name} {n}" for name, field in _SHORT.items() if (n := getattr(each, field)[number]) > 1]
    return ", ".join([f"{runs.model[number]} on {runs.gpus[number]}", *words, f"mbs {each.micro_batch[number]}"])


_SHORT = {"tp": "tensor", "pp": "pipeline", "dp": "data", "cp": "context", "v": "chunks"}
