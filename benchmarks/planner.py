"""Fit the planner's constants on published runs, and hold its predictions against runs that the fit did not see.

python benchmarks/planner.py                    three folds: errors by source, held out
python benchmarks/planner.py --write            fit on all rows, to course_lib/predict/planner/constants.json
python benchmarks/planner.py --compact ROWS     make course_pages/lesson17/rows.json of a file of published rows
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from course_lib.predict.planner.cost import NAMES, Constants
from course_pages.lesson17 import truth
from course_pages.lesson17.held_out import MACHINES, MEMORY, choices, fit, held_out

ROOT = Path(__file__).parents[1]
CONSTANTS = ROOT / "course_lib/predict/planner/constants.json"


def judged(rows: Path) -> dict[str, dict[str, np.ndarray]]:
    """Errors as from `held_out`, but of other rows and with the constants that are stored."""
    found = {}
    for machine, runs in truth.read(rows).items():
        constants = Constants(**json.loads(CONSTANTS.read_text("utf-8"))["machines"][machine]["constants"])
        found[machine] = truth.predicted(runs, constants, truth.read()[machine].timed)
    return found


def report(rows: Path = truth.ROWS) -> None:
    """Print the errors by source, the share of failures that a memory limit refuses, and how good chosen plans are."""
    predicted = held_out() if rows == truth.ROWS else judged(rows)
    for machine, runs in truth.read(rows).items():
        mine = predicted[machine]
        timed = np.where(runs.clean, runs.seconds, np.nan)
        for name, measured in (("seconds", timed), ("thumb", timed), ("gigabytes", runs.gigabytes)):
            for each in truth.verdict(runs, mine[name], measured):
                print(f"{machine:24}{name:10}{each.source:26}{each.n:5}{each.median:7.1%}{each.p90:7.1%}  {each.worst}")
    runs, mine = truth.read(rows)["H100 nanotron"], predicted["H100 nanotron"]
    for limit in range(75, 83):
        refused = (mine["least"] > limit) | runs.illegal
        right, wrong = refused[runs.failed].mean(), refused[~runs.failed].mean()
        print(f"limit {limit} GB: {right:.1%} of the failures and {wrong:.2%} of the runs refused")
    for model, gpus, n, over in choices(runs, mine["seconds"]):
        print(f"{model} on {gpus}: the chosen of {n} takes {over:.2f} times the best")


def write() -> None:
    """Fit on all rows, and keep the constants beside the code."""
    machines, memory = {}, {}
    for machine, runs in truth.read().items():  # the first has a thousand rows with memory, and lends others its own
        constants = fit(machine, runs)
        memory = memory or {name: getattr(constants, name) for name in MEMORY}
        own = {name for name in MACHINES[machine]["free"] if name in MEMORY}
        if not own:
            constants = Constants(**{**vars(constants), **memory})
        machines[machine] = {
            "default_for": MACHINES[machine].get("default_for"),
            "rows": {
                "time": len(runs.timed.seconds),
                "memory": int(np.isfinite(runs.gigabytes).sum()),
            },
            "sources": sorted(set(map(str, runs.source))),
            "memory_of": machine if own else next(iter(machines), machine),
            "fitted": MACHINES[machine]["free"],
            "constants": {name: float(f"{getattr(constants, name):.4g}") for name in NAMES},
        }
    about = {
        "sources": "of each row: course_pages/lesson17/rows.json",
        "made_by": "python benchmarks/planner.py --write",
        "date": datetime.date.today().isoformat(),
    }
    CONSTANTS.write_text(json.dumps({**about, "machines": machines}, indent=1) + "\n", "utf-8")


# ---- rows ----------------------------------------------------------------------------------------------------------

COLUMNS = [
    "tensor", "pipeline", "data", "context", "expert", "zero", "micro_batch", "chunks", "full", "batch", "first",
    "most", "last", "seconds", "gigabytes", "failed", "clean", "illegal", "narrow", "again", "bits",
]  # fmt: skip


LLAMAS = ("megatron-bridge", "torchtitan", "nemo-long")
"""Sources of Llama models, which do not print that their MLPs are gated and their head is not tied."""


def compact(path: Path, to: Path = truth.ROWS) -> None:
    """Keep rows against which the planner can be held: dense models whose shape, layout and batch are printed."""
    given = json.loads(path.read_text("utf-8"))
    groups: defaultdict[tuple[Any, ...], list[list[float | None]]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for row in given["rows"]:
        machine = next((name for name, each in MACHINES.items() if _belongs(row, each)), None)
        if problem := _unusable(row, machine):
            left_out[f"{row['src']}: {problem}"] += 1
            continue
        groups[machine, row["src"], row["model"], *_shape(row)].append(_numbers(row))
    models = [
        {"machine": machine, "source": source, "name": name, "shape": shape, "seq": seq, "tied": tied,
         "sequence_parallel": source == "ultrascale" or source in LLAMAS, "rows": rows}
        for (machine, source, name, shape, seq, tied), rows in groups.items()
    ]  # fmt: skip
    used = {each["source"] for each in models}
    head = {
        "about": "Published training runs, dense models with shape, layout and batch in print. Seconds are of a step, "
        "from tokens/s or TFLOP/s by each source's formula; GB as printed; first, most, last: blocks of stages, 0 "
        " where they are cut evenly; narrow: gradients have 16 bits and no sums of 32; again: share of a forward "
        "pass's products that run again, beyond what full says; bits: of products, beside a machine's 16; machines: "
        "peak FLOP/s, GPUs that share fast links.",
        "sources": {name: _cleaned(each) for name, each in given["sources"].items() if name in used},
        "left_out": dict(left_out), "columns": COLUMNS,
        "machines": {name: [each["peak"], each.get("node", 8)] for name, each in MACHINES.items()},
    }  # fmt: skip
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in models)
    to.write_text(json.dumps(head, indent=1)[:-2] + ',\n "models": [\n' + lines + "\n]}\n", "utf-8")


def _cleaned(source: dict[str, str]) -> dict[str, str]:
    """The source without remarks on the place of a copy."""
    return {key: re.sub(r",? ?\(?(paper text read, )?stored \w+ \d+\)?", "", text) for key, text in source.items()}


def _belongs(row: dict[str, Any], machine: dict[str, Any]) -> bool:
    is_its = row["src"] in machine["sources"] and machine.get("gpu", "") in row["gpu"]
    software = row.get("software", "") in machine.get("software", (row.get("software", ""),))
    return is_its and software and machine.get("precision", "") in row.get("precision", "")


def _unusable(row: dict[str, Any], machine: str | None) -> str:
    if machine is None:
        return "no constants for its machine"
    if any(not row.get(name) for name in ("layers", "hidden", "ffn", "tp", "pp", "dp")):
        return "no shape or layout"
    if not _batch(row):
        return "no batch"
    if row["src"] == "nemo-long" and row["tp"] * row["pp"] * row["dp"] * (row.get("cp") or 1) != row["gpus"]:
        return "its axes do not multiply to its GPUs"
    if "rowwise" in row.get("precision", ""):
        return "three rows with a scale for each row of a matrix"
    return "" if row.get("mfu") or row.get("failed") or _seconds(row) or row.get("memory_gb") else "nothing measured"


def _batch(row: dict[str, Any]) -> int:
    """Sequences of a step, on all GPUs; torchtitan prints those of a replica."""
    own = row.get("local_batch") or row.get("mbs") if row["src"] == "torchtitan" else 0
    return row.get("gbs") or (own or 0) * row["dp"]


def _shape(row: dict[str, Any]) -> tuple[Any, ...]:
    heads = row.get("heads") or 64
    numbers = (row["layers"], row["hidden"], heads, row.get("kv_heads", heads), row["ffn"], row.get("vocab", 51200))
    llama = row["src"] in LLAMAS
    return (*numbers, row["seq"], row.get("swiglu", llama)), row["seq"], row.get("tied", not llama)


def _numbers(row: dict[str, Any]) -> list[float | None]:
    """The columns of a row."""
    ultrascale, failed = row["src"] == "ultrascale", bool(row.get("failed") or row.get("oom"))
    (layers, hidden, heads, kv_heads, ffn, vocab, *_), *_ = _shape(row)
    blocks, empty = [0, 0, 0], 0
    if ultrascale:
        cost = vocab * hidden / (2 * hidden**2 * (1 + kv_heads / heads) + 3 * hidden * ffn)
        blocks, empty = cut_by_cost(layers, cost, row["pp"])
    few_heads = bool(heads % row["tp"] or kv_heads % row["tp"])
    clean = row["tp"] <= 8 and row["gpus"] <= 256 and (row["pp"] == 1 or row["gpus"] == 8)
    zero = row.get("zero") or (0 if row["src"] != "megatron-bridge" else 3 if row.get("fsdp") else 1)
    sizes = [row["tp"], row["pp"], row["dp"], row.get("cp") or 1, 1]
    layout = [*sizes, zero, row.get("mbs") or 1, row.get("vpp") or 1]
    if row.get("local_batch"):  # torchtitan makes as many micro-batches as it has stages, where none are asked for
        layout[-2:] = [row["local_batch"] // row["pp"], 2 if "Interleaved" in row["schedule"] else 1]
    time, memory = _seconds(row), row.get("memory_gb")
    measured = [float(f"{time:.5g}") if time else None, memory]
    # BigScience's log, until 27 February in fp16; from "Rebalancing layers" on bf16 with sums in 32 bits
    narrow = row["src"] == "bigscience-prequel" and "Rebalancing" not in row["where"]
    again = _again(row) if row["src"] == "torchtitan" else 0.0
    bits = 8 if row["src"] == "torchtitan" and "float8" in row["precision"] else 16  # others: a machine for each format
    flags = [int(failed), int(clean or not ultrascale), int(empty > 2 or few_heads), int(narrow), again, bits]
    return [*layout, int(row.get("recompute") == "full"), _batch(row), *blocks, *measured, *flags]


def _again(row: dict[str, Any]) -> float:
    """Share of a forward pass's products that torchtitan runs again, less the whole pass where all is recomputed.

    By its policy for selective recompute (pytorch/torchtitan, parallelisms/parallelize_llama.py at 004b314), every
    second `mm` runs again, of wq, wk, wv, wo, w1, w3, w2: those are wk, wo and w3. Products in float8 are another
    operation, which is not on its list of results to save, so all of them run again. No one needs w2's result again.
    """
    keys, wide = row["kv_heads"] / row["heads"], row["ffn"] / row["hidden"]
    whole = 2 + 2 * keys + 3 * wide
    if row["recompute"] == "full":
        return -wide / whole
    return (whole - wide if "float8" in row["precision"] else keys + 1 + wide) / whole


def _seconds(row: dict[str, Any]) -> float | None:
    """Seconds of a step, as printed or by the source's own formula."""
    if row.get("step_s"):
        return row["step_s"]
    tokens = _batch(row) * row["seq"]
    if row.get("tokens_per_s_per_gpu"):
        return tokens / row["tokens_per_s_per_gpu"] / row["gpus"]
    layers, h, s, v = row["layers"], row["hidden"], row["seq"], row.get("vocab", 51200)
    if row["src"] == "nemo-long":
        block = 2 * h * h * (1 + row.get("kv_heads", 1) / row.get("heads", 1)) + 3 * h * row["ffn"]
        flops = tokens * (6 * (layers * block + v * h) + 12 * layers * h * s)
        return flops / row["model_tflops"] / 1e12 / row["gpus"]
    if row.get("hardware_tflops"):
        flops, rate = (
            96 * tokens * layers * h * h * (1 + s / 6 / h + v / 16 / layers / h),
            row["hardware_tflops"] * 1e12,
        )
    elif row.get("mfu"):
        flops, rate = 72 * tokens * layers * h * h * (1 + s / 6 / h + v / 12 / layers / h), row["mfu"] / 100 * 312e12
    else:
        return None
    return flops / rate / row["gpus"]


def cut_by_cost(layers: int, head: float, stages: int) -> tuple[list[int], int]:
    """Blocks of the first stage, the fullest and the last, and stages without any: nanotron's rule.

    A stage takes layers until their costs, in blocks, are more than its share; stages left over are empty.
    """
    share, parts, spent, stage = (layers + head) / stages, [[0, 0] for _ in range(stages)], 0.0, 0
    for kind, cost in [(0, 1.0)] * layers + [(1, head)]:
        parts[stage][kind] += 1
        spent += cost
        if stage < stages - 1 and spent > share * (stage + 1) * (1 + 1e-12):
            stage += 1
    used = [part for part in parts if sum(part)]
    return [parts[0][0], max(part[0] for part in used), used[-1][0]], stages - len(used)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="fit on all rows and keep the constants")
    parser.add_argument("--compact", type=Path, metavar="ROWS", help="make rows.json of this file")
    parser.add_argument("--judge", type=Path, metavar="ROWS", help="hold the stored constants against this file")
    asked = parser.parse_args()
    if asked.judge:
        with tempfile.TemporaryDirectory() as folder:
            compact(asked.judge, Path(folder) / "rows.json")
            report(Path(folder) / "rows.json")
    elif asked.compact:
        compact(asked.compact)
    elif asked.write:
        write()
    else:
        report()
