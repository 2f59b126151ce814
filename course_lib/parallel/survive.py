"""A training run that survives its nodes: elastic restart under torchrun, from sharded checkpoints.

    python -m course_lib.parallel.survive runs/gpt --kill-at 25 --back-at 40 --pause-s 0.5

plays one on this machine: two nodes of two ranks train the course's GPT; one node is killed, the other goes on alone
from the last checkpoint, the first comes back. (`--kill-rank-at 50` then kills a single rank.) On a cluster type on
every node, with a folder that all of them see,

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1      # a new store for new ranks: no addresses of dead ones in it
    torchrun --nnodes 1:2 --nproc-per-node 2 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint alpha:29400 \\
        -m course_lib.parallel.survive runs/gpt

A rank that loses its peers raises. Its agent (torchrun) kills the node's other ranks, finds out which nodes are still
there, and starts all ranks anew. A dead node leaves a smaller world, since its agent died with it; a dead rank on a
node that lives is replaced. Memory is gone; the run survives by `resume`. The batch of a step is the same on any number
of ranks, and so is the loss curve, but for rounding. With `--pipeline 2 --tensor 2` each replica has 4 ranks, and a
smaller world is a grid of fewer replicas.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_kit import ranks
from course_lib.parallel.checkpoint import Checkpoints
from course_lib.parallel.hybrid import HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.parallel.train import CONFIG, batch
from course_lib.parallel.train import train_alone as train_on_one_device

GLOBAL_BATCH = 12  # sequences in a step on all ranks together; 1, 2, 3, 4 and 6 ranks share them evenly
LEARNING_RATE = 1e-3
RENDEZVOUS = "store_type=file,last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=5"
"""How agents find each other. A file survives every node. A node that is silent for 5 s is dead (torchrun's own: 15 s),
and nodes that are there wait 5 s for others (30 s)."""


def train(folder: Path, steps: int, every: int, pause_s: float = 0.0, pipeline: int = 1, tensor: int = 1) -> None:
    """Go on from the newest checkpoint, write one every `every` steps, note every loss. All ranks call.

    Args:
        folder: the folder of the log and the checkpoints.
        steps, every: steps of the whole training; steps from checkpoint to checkpoint.
        pause_s: seconds to wait in every step, as long as a larger model would take.
        pipeline, tensor: ranks of a replica along each axis; all ranks that there are divide into whole replicas.
    """
    world_size = dist.get_world_size()
    mesh = Mesh({"data": world_size // (pipeline * tensor), "pipeline": pipeline, "tensor": tensor})
    how: dict[str, Any] = {"zero": 1 if pipeline > 1 else 2, "dtype": torch.float64, "device": ranks.device()}
    grid = HybridParallel(CONFIG, mesh, micro_batches=pipeline, **how)
    optimizer = grid.optimizer(torch.optim.AdamW, lr=LEARNING_RATE)
    checkpoints = Checkpoints(folder / "checkpoints", grid, optimizer)
    for step in range(checkpoints.resume()["step"], steps):
        loss = grid.train_step(optimizer, batch(step, GLOBAL_BATCH))
        time.sleep(pause_s)
        if dist.get_rank() == 0:
            note(folder, step=step, loss=loss.item(), ranks=world_size)
        if (step + 1) % every == 0:
            checkpoints.save(step + 1, wait=False)  # the disk writes while the ranks compute
    checkpoints.wait()


def train_alone(steps: int) -> list[float]:
    """The loss before each step of the same training, on one device that lives."""
    return train_on_one_device(steps, GLOBAL_BATCH, torch.float64, {"lr": LEARNING_RATE})


def note(folder: Path, **entry: Any) -> None:
    """Add a line to the run's log."""
    line = json.dumps({"time_s": round(time.time(), 3)} | entry) + "\n"
    with (folder / "log.jsonl").open("ab", buffering=0) as log:
        log.write(line.encode())  # one write without a buffer: a killed rank leaves no half line


def notes(folder: Path) -> list[dict[str, Any]]:
    """The run's log: steps and events. Steps since the last checkpoint come again after a death."""
    path = folder / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def survive(
    folder: Path, kill_at: int, back_at: int | None = None, kill_rank_at: int | None = None, steps: int = 60,
    every: int = 10, pause_s: float = 0.0, ranks_per_node: int = 2, pipeline: int = 1, tensor: int = 1,
    timeout_s: float = 300,
) -> list[dict[str, Any]]:  # fmt: skip
    """Train on two nodes, both on this machine, and SIGKILL the first one, agent and ranks; return the log of `notes`.

    Args:
        folder: an empty folder for log and checkpoints.
        kill_at: the step after which the node is killed.
        back_at: the step after which the node comes back; None for never. A start takes seconds: give `pause_s`.
        kill_rank_at: the later step after which a single rank is killed, while its agent lives; None for never.
        steps, every, pause_s, pipeline, tensor: as for `train`.
        timeout_s: seconds that the whole run may take.

    Raises:
        ValueError: the folder has a run.
        RuntimeError: the run did not end well; with the end of the survivor's output.
    """
    if notes(folder):
        raise ValueError(f"{folder} has a run already; give an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    options = ["--steps", str(steps), "--every", str(every), "--pause-s", str(pause_s)]
    options += ["--pipeline", str(pipeline), "--tensor", str(tensor)]
    start = partial(start_node, folder, ranks_per_node=ranks_per_node, options=options)
    nodes = [start("first"), start("second")]
    try:
        wait_for(folder, kill_at, nodes[1], deadline, world_size=2 * ranks_per_node)
        nodes[0].kill()  # the agent; its ranks notice (`die_with_the_agent`)
        note(folder, event="node killed")
        if back_at is not None:
            wait_for(folder, back_at, nodes[1], deadline)
            note(folder, event="node back")
            nodes.append(start("back"))
        if kill_rank_at is not None:
            wait_for(folder, kill_rank_at, nodes[1], deadline)
            kill_rank(folder, ranks_per_node - 1)
        wait_for(folder, steps, nodes[1], deadline)
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    return notes(folder)


def kill_rank(folder: Path, rank: int) -> None:
    """Kill one rank with SIGKILL; its agent lives."""
    pid = int((folder / f"rank-{rank}.pid").read_text())
    os.kill(pid, signal.SIGKILL)  # no clean-up, no last word: as a machine that loses power
    note(folder, event="rank killed", pid=pid)


def start_node(folder: Path, name: str, ranks_per_node: int, options: list[str]) -> subprocess.Popen[bytes]:
    """An agent, which starts its ranks as soon as it has found the other agents; their output goes to `name`.txt."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--max-restarts", "3"]
    command += ["--nproc-per-node", str(ranks_per_node), "--local-addr", "127.0.0.1", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", str(folder / "rendezvous"), "--rdzv-id", "run", "--rdzv-conf", RENDEZVOUS]
    command += ["-m", "course_lib.parallel.survive", str(folder), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # or new ranks may read the dead ones' addresses
    with (folder / f"{name}.txt").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment)


def wait_for(folder: Path, step: int, survivor: subprocess.Popen[bytes], deadline: float, world_size: int = 1) -> None:
    """Wait until at least `world_size` ranks have taken this step, or until the survivor has ended."""
    while not any(line.get("step", -1) >= step and line["ranks"] >= world_size for line in notes(folder)):
        code = survivor.poll()  # None while it runs
        if code == 0:
            return
        if code is not None or time.monotonic() > deadline:
            output = (folder / "second.txt").read_text()[-3000:]
            raise RuntimeError(f"the survivor {'was too slow' if code is None else f'ended with {code}'}:\n{output}")
        time.sleep(0.05)


def die_with_the_agent() -> None:
    """End this rank when its agent dies: a dead machine takes its ranks along, a dead process on this one does not."""
    agent = os.getppid()  # changes when the agent is dead: then another process adopts this one

    def watch() -> None:
        while os.getppid() == agent:
            time.sleep(0.1)
        os._exit(1)  # at once: a thread cannot raise into the main one

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Train, as a rank under torchrun; or play the whole story, as a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="steps from checkpoint to checkpoint")
    parser.add_argument("--kill-at", type=int, default=25, help="step after which the first node is killed")
    parser.add_argument("--back-at", type=int, help="step after which it comes back")
    parser.add_argument("--kill-rank-at", type=int, help="later step after which a single rank is killed")
    parser.add_argument("--pause-s", type=float, default=0.0, help="seconds to wait in every step")
    parser.add_argument("--ranks-per-node", type=int, default=2, help="where it plays the whole story")
    parser.add_argument("--pipeline", type=int, default=1, help="ranks of a replica along the pipeline axis")
    parser.add_argument("--tensor", type=int, default=1, help="and along the tensor axis")
    given = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_the_agent()
        ranks.init()
        (given.folder / f"rank-{dist.get_rank()}.pid").write_text(str(os.getpid()))
        train(given.folder, given.steps, given.every, given.pause_s, given.pipeline, given.tensor)
        dist.destroy_process_group()
        return
    log, alone = survive(**vars(given)), train_alone(given.steps)
    for line in log:
        if "event" not in line:
            off = f"off one device by {line['loss'] - alone[line['step']]:+.1e}"
            line["event"] = f"step {line['step']:3}   {line['ranks']} ranks   loss {line['loss']:.6f}   {off}"
        sys.stdout.write(f"{line['event']}\n")


if __name__ == "__main__":
    main()
