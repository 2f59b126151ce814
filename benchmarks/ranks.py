"""How long until 4 ranks have done an all_reduce, called from a running Python? Ours beside other tools.

    python benchmarks/ranks.py [--quick]

Every way is timed in a fresh interpreter, several times, the ways taking turns, so that a busy moment of the machine
hits all of them. *first* runs from before any import to the first result, *later* is another call of the same
function, *empty* a call of a function that does nothing. Printed: medians, and their ratio to ours. ipyparallel is
timed if it is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORLD_SIZE = 4
Times = dict[str, list[float]]


def reduce_once() -> float:
    """The work of ranks in every way, for ranks that have a process group."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def join_and_reduce(rank: int, folder: str) -> float:
    """The same work for ways that do not make a process group themselves; an existing one is used again."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    return reduce_once()


def join_reduce_and_leave(rank: int, folder: str) -> None:
    """The same work for processes that end afterwards: one that still has a group may abort when it ends."""
    import torch.distributed as dist

    join_and_reduce(rank, folder)
    dist.barrier()
    dist.destroy_process_group()


def do_nothing() -> None:
    """An empty call."""


def clock(call: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each of `repeats` calls."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def time_ours(repeats: int, diagnose: bool = True) -> Times:
    """`ranks.run`."""
    start = time.perf_counter()
    from course_kit import ranks

    assert ranks.run(reduce_once, world_size=WORLD_SIZE, diagnose=diagnose) == [WORLD_SIZE] * WORLD_SIZE
    first = time.perf_counter() - start

    def ours(fn: Callable[[], Any]) -> list[float]:
        return clock(lambda: ranks.run(fn, world_size=WORLD_SIZE, diagnose=diagnose), 20 * repeats)

    return {"first": [first], "later": ours(reduce_once), "empty": ours(do_nothing)}


def time_spawn(repeats: int) -> Times:
    """`torch.multiprocessing.spawn`, which starts new processes for every call (and returns no results)."""
    start = time.perf_counter()
    import torch.multiprocessing as mp

    def call() -> None:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(join_reduce_and_leave, args=(folder,), nprocs=WORLD_SIZE)  # type: ignore[attr-defined]

    call()
    return {"first": [time.perf_counter() - start], "later": clock(call, repeats)}


def time_torchrun(repeats: int) -> Times:
    """torchrun on a file, as a subprocess."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(
            "import torch, torch.distributed as dist\ntorch.set_num_threads(1)\n"
            "dist.init_process_group('gloo')\ndist.all_reduce(torch.ones(1))\ndist.destroy_process_group()\n"
        )
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD_SIZE}"]
        first, *later = clock(lambda: subprocess.run([*command, script], check=True, capture_output=True), 1 + repeats)
    return {"first": [first], "later": later}


def time_ipyparallel(repeats: int) -> Times:
    """ipyparallel: engines that stay, like our ranks."""
    start = time.perf_counter()
    import ipyparallel  # type: ignore[import-not-found]  # not a dependency: pip install it to compare

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(None):
        cluster = ipyparallel.Cluster(n=WORLD_SIZE, log_level=50)
        client = cluster.start_and_connect_sync(activate=False)
        try:
            view = client[:]
            view.use_cloudpickle().get()
            view.push({"folder": folder}, block=True)
            view.scatter("number", list(range(WORLD_SIZE)), block=True)
            view.push(
                {"join_and_reduce": join_and_reduce, "reduce_once": reduce_once, "WORLD_SIZE": WORLD_SIZE}, block=True
            )
            view.execute("join_and_reduce(number[0], folder)", block=True)
            first = time.perf_counter() - start
            later = clock(lambda: view.apply_sync(reduce_once), 20 * repeats)
            return {"first": [first], "later": later, "empty": clock(lambda: view.apply_sync(do_nothing), 20 * repeats)}
        finally:
            cluster.stop_cluster_sync()
            client.close()


WAYS: dict[str, Callable[[int], Times]] = {
    "ranks.run": time_ours,
    "ranks.run, diagnose=False": lambda repeats: time_ours(repeats, diagnose=False),
    "torch.multiprocessing.spawn": time_spawn,
    "torchrun": time_torchrun,
    "ipyparallel": time_ipyparallel,
}


def measure(rounds: int, repeats: int) -> dict[str, Times]:
    """Time every way in fresh interpreters, in turns."""
    times: dict[str, Times] = {}
    ways = [way for way in WAYS if way != "ipyparallel" or importlib.util.find_spec("ipyparallel")]
    for number in range(rounds):
        for way in ways:
            print(f"\rround {number + 1} of {rounds}: {way:<40}", end="", file=sys.stderr, flush=True)
            command = [sys.executable, __file__, "--way", way, "--repeats", str(repeats)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            for kind, seconds in json.loads(done.stdout.splitlines()[-1]).items():
                times.setdefault(way, {}).setdefault(kind, []).extend(seconds)
    print("\r" + " " * 70 + "\r", end="", file=sys.stderr)
    return times


def table(times: dict[str, Times]) -> str:
    """Medians in ms, and their ratio to ours."""
    ours = times["ranks.run"]
    lines = [f"{'ms, median (times ours)':<29}" + "".join(f"{kind:>20}" for kind in ours)]
    for way, kinds in times.items():
        cells = []
        for kind, our_seconds in ours.items():
            if kind not in kinds:
                cells.append("-")
                continue
            median = statistics.median(kinds[kind])
            cells.append(f"{1000 * median:,.2f} ({median / statistics.median(our_seconds):,.1f})")
        lines.append(f"{way:<29}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    """Time everything and print the table; with `--way`, time one way once and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of few calls: about half a minute")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(WAYS[options.way](options.repeats)))
        return
    import torch

    print(f"{WORLD_SIZE} ranks, {os.cpu_count()} CPU cores, Python {sys.version.split()[0]}, torch {torch.__version__}")
    print(table(measure(rounds=1, repeats=1) if options.quick else measure(rounds=5, repeats=3)))


if __name__ == "__main__":
    main()
