"""The capstone at its end: a run that is planned, killed, resumed on fewer ranks, and ends on lesson 14's promise.

    python benchmarks/promise.py            the run of lesson 14's promise, ten times its grid: 2,800 steps
    python benchmarks/promise.py 32 6e10    another width and budget in FLOPs: some 600 steps

It writes course_pages/lesson17/promise.json. Lesson 14's law promises the loss of a run; the planner of this machine
chooses a layout of four ranks for it; `torchrun` trains, is killed after a third of the steps, and goes on with two
ranks and ZeRO-3. The last checkpoint is loaded into the plain GPT and judged on the windows that judged the grid's
runs.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from course_kit import ranks
from course_lib.model.gpt import GPT
from course_lib.parallel.checkpoint import Checkpoints
from course_lib.predict.laws import fit_law, left_out, spread_at
from course_pages.lesson14 import grid
from course_pages.lesson17 import capstone, machine
from course_pages.lesson17.capstone import Layout, Training


def promise(parameters: int, tokens: int) -> dict[str, float]:
    """The law of lesson 14's grid at this size: the loss, and the half-width of its interval, a share of the excess."""
    runs, entropy = grid.as_runs(grid.THE_GRID), grid.judge()[2]
    budgets = np.array([job.budget for job in grid.THE_GRID])
    beyond = max(1.5, 6 * parameters * tokens / max(budgets))
    wide = 2 * spread_at(left_out(runs, budgets, entropy), beyond)
    return {"entropy": entropy, "loss": float(fit_law(runs, entropy).loss(parameters, tokens)), "wide": wide}


def planned(job: grid.Job) -> tuple[Training, Layout, Layout]:
    """The training of the job, with a batch that four replicas can share; the layout of 4 ranks, and of 2 later."""
    batch = max(4, round(job.batch_size / 4) * 4)
    steps = round(job.budget / 6 / grid.parameters(job.config) / (batch * grid.CONTEXT))
    training = Training(job.config, batch, steps, job.rate, job.seed, source="words")
    candidates = [
        replace(each, micro_batch=batch // each.data // each.pipeline)  # no more micro-batches than the pipeline needs
        for each in machine.layouts(training, 4, micro_batch=batch // 4)
        if each.tensor == 1 and each.pipeline <= job.config.layers
    ]  # another number of ranks can load shards of one tensor rank alone
    best = machine.rank_layouts(training, candidates, machine.calibrate(training, (4,)))[0].layout
    return training, best, Layout(data=2, zero=3, micro_batch=batch // 2)


def run(training: Training, first: Layout, second: Layout, folder: Path) -> dict[str, Any]:
    """Train on the first layout for a third of the steps, kill it, and go on with the second to the end."""
    config = json.dumps(asdict(training.config))
    options = ["--config", config, "--batch-size", str(training.batch_size), "--steps", str(training.steps)]
    options += ["--rate", str(training.rate), "--seed", str(training.seed), "--source", training.source]
    options += ["--every", str(max(1, training.steps // 20))]
    agent = capstone.start(folder, first, *options)
    while agent.poll() is None and len(capstone.said(folder)) < training.steps // 3:
        time.sleep(0.5)
    agent.kill()
    agent.wait()
    before = [line["step"] for line in capstone.said(folder) if "step" in line]
    assert capstone.start(folder, second, *options, "--resume").wait() == 0, (folder / "said.txt").read_text()[-3000:]
    steps = [line["step"] for line in capstone.said(folder) if "step" in line]
    assert sorted(set(steps)) == [*range(training.steps)]
    return {"killed_after": before[-1], "resumed_at": steps[len(before)]}


def judged(training: Training, folder: Path) -> float:
    """The loss of the last checkpoint in the plain GPT, on the windows that judge the grid's runs."""
    model = GPT(training.config, training.seed)
    Checkpoints(folder, model, torch.optim.Adam(model.parameters(), betas=(0.9, 0.95))).load(training.steps)
    return grid.loss(model)


def main() -> None:
    """Promise, run, judge, and keep the result."""
    job = grid.Job(int(sys.argv[1]), float(sys.argv[2])) if len(sys.argv) > 2 else grid.TEN_TIMES
    training, first, second = planned(job)
    parameters, tokens = grid.parameters(job.config), training.steps * training.batch_size * grid.CONTEXT
    found = {"parameters": parameters, "tokens": tokens, "promised": promise(parameters, tokens)}
    found["budget"] = job.budget
    print(found, first, second, flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder, started = Path(name), time.perf_counter()
        found |= run(training, first, second, folder)
        found["minutes"] = round((time.perf_counter() - started) / 60, 1)
        found["loss"] = ranks.run(judged, training, folder, world_size=1)[0]
    about = {"date": date.today().isoformat(), "python": platform.python_version(), "torch": torch.__version__}
    about |= {"device": f"{os.cpu_count()} cores, {platform.machine()}", "made_by": "python benchmarks/promise.py"}
    kept = {"about": about, "training": asdict(training), "first": asdict(first), "second": asdict(second)} | found
    print(json.dumps(kept, indent=1))
    capstone.PROMISE.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
