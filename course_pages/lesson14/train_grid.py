"""Train lesson 14's grid of runs: on several cores, with a bar, and a run that is done stays done.

`course train-grid` starts this module as a program: FILE, workers, and "beside" for the runs beside the grid.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from importlib.metadata import version
from multiprocessing import active_children, get_context
from pathlib import Path
from platform import machine, python_version

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from course_pages.lesson14.grid import ALL, TEN_TIMES, THE_GRID, Job, key, train


def train_all(jobs: list[Job], path: Path, workers: int, console: Console) -> None:
    """Train those of `jobs` that `path` lacks, the longest first, and write each result as it comes.

    `path` is a JSON file, made if need be; `workers` are processes, each on one core; the bar goes to `console`.

    Raises:
        ValueError: `path` is another kind of file.
    """
    kept = _read(path)
    missing = sorted((job for job in jobs if key(job) not in kept["runs"]), key=lambda job: -job.budget)
    console.print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are in {path}; {len(missing)} to train")
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    # Ctrl-C reaches the whole terminal: workers do not hear it, and this process decides.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    with pool, Progress(*columns, console=console) as bar:
        task = bar.add_task("trains", total=sum(job.budget for job in missing))
        running = {pool.submit(train, job): job for job in missing}
        try:
            for future in as_completed(running):
                job, result = running[future], future.result()
                kept["runs"][key(job)] = result
                _write(kept, path)
                bar.update(task, advance=job.budget, description=f"width {job.width}: loss {result['loss']:.3f}")
        except KeyboardInterrupt:
            for worker in active_children():
                worker.terminate()  # the pool itself would wait for runs that have begun, and for those next in line
            console.print(f"stopped; {path} has {len(kept['runs'])} runs, and the same command goes on from there")
            raise


def _read(path: Path) -> dict:
    if not path.exists():
        about = {"python": python_version(), "torch": version("torch"), "device": f"{machine()} CPU"}
        return {"about": about | {"cores": os.cpu_count(), "date": str(date.today())}, "runs": {}}
    try:
        kept = json.loads(path.read_text("utf-8"))
        return {"about": kept["about"], "runs": kept["runs"]}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} holds no runs of this command: give the name of a new file") from None


def _write(kept: dict, path: Path) -> None:
    spare = path.with_suffix(".part")
    spare.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    spare.replace(path)  # at once: a stop while it writes leaves the old file


if __name__ == "__main__":
    to, workers, *beside = sys.argv[1:]
    try:
        train_all(ALL if beside else [*THE_GRID, TEN_TIMES], Path(to), int(workers), Console())
    except ValueError as problem:
        sys.exit(str(problem))
    except KeyboardInterrupt:
        sys.exit(130)
