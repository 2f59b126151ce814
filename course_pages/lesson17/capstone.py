"""The run at the end of the course: the GPT, trained by a layout, on the ranks that torchrun starts.

    torchrun --standalone --nproc-per-node 4 -m course_pages.lesson17.capstone runs/gpt --pipeline 4
    torchrun --standalone --nproc-per-node 2 -m course_pages.lesson17.capstone runs/gpt --data 2 --resume

The flags of a layout are those that `course plan` prints. Nothing here is new. `HybridParallel` cuts the model (lesson
12), recompute forgets activations (03), ZeRO cuts states (10), `Checkpoints` writes them and reads them on other ranks
(10), and the text of a row is a function of (seed, step, row) (07): after any failure, on any ranks, each row of
each step is trained on once.

Rank 0 prints a line of JSON for each step: "step", "loss", "seconds" until the slowest rank has done the step, and
"processor_seconds" of all ranks together, in which other programs of a busy machine are not. The second and the third
step of a start have the meters' readings instead, a list of all ranks each: "held", "peak" and "sent" in bytes; meters
take seconds of their own. The last line has "steps", "layout", and the median of the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_kit.units import Bytes
from course_lib.model import text
from course_lib.model.gpt import GPT, Attention, Block, GPTConfig
from course_lib.model.lexicon import Lexicon
from course_lib.model.text import Batch
from course_lib.parallel.checkpoint import Checkpoints
from course_lib.parallel.hybrid import AXES, AnyOptimizer, HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.parallel.survive import die_with_the_agent
from course_lib.predict.setup import Setup
from course_lib.train.recompute import recompute_only
from course_lib.train.step import train_step

Line = dict[str, Any]
"""The numbers of a step: a line of JSON."""
PROMISE = Path(__file__).with_name("promise.json")


@dataclass(frozen=True)
class Layout:
    """One way to share the training: ranks along each axis, ZeRO's stage, sequences at once, and recompute."""

    pipeline: int = 1
    data: int = 1
    tensor: int = 1
    zero: Literal[0, 1, 2, 3] = 0  # stage of ZeRO along data
    micro_batch: int = 4  # sequences that a rank sends through its layers at once
    recompute: Literal["none", "selective", "full"] = "none"  # attention's scores, whole blocks

    @property
    def mesh(self) -> Mesh:
        """The grid of ranks; tensor ranks are neighbours."""
        return Mesh({axis: getattr(self, axis) for axis in AXES})

    def __str__(self) -> str:
        """Ranks along pipeline · data · tensor, then ZeRO's stage and recompute where they are on."""
        zero, again = f" ZeRO-{self.zero}" if self.zero else "", f" {self.recompute}" * (self.recompute != "none")
        return f"{self.pipeline}·{self.data}·{self.tensor}{zero}{again}"


@dataclass(frozen=True)
class Training:
    """A training, the same by every layout."""

    config: GPTConfig = field(default_factory=lambda: GPTConfig(4, 128, 4, text.VOCAB_SIZE, 64))
    batch_size: int = 16  # sequences in a step, on all ranks together
    steps: int = 20  # of the whole training
    rate: float = 3e-3  # the learning rate after a warm-up of 5 %, from which a line falls to zero, as in lesson 14
    seed: int = 0  # of weights and text
    dtype: Literal["float32", "float64"] = "float32"
    source: Literal["stories", "words"] = "stories"  # lesson 14's words of known entropy: give `config` their 32 tokens

    def batch(self, step: int) -> Batch:
        """The rows of a step, the same on every rank."""
        inputs, targets = text_of(self.source).batch(self.seed, step, 0, self.batch_size, self.config.context)
        if self.source == "words":
            inputs, targets = inputs & 31, targets & 31
        return inputs.to(ranks.device()), targets.to(ranks.device())

    def rate_at(self, step: int) -> float:
        """The learning rate of a step: a function of the step, so that a checkpoint need not know it."""
        return self.rate * min(1, (step + 1) / (0.05 * self.steps)) * (1 - step / self.steps)

    def setup(self, layout: Layout) -> Setup:
        """The same training in the words of `predict`; a ValueError if its sizes do not divide."""
        if self.batch_size % (layout.data * layout.micro_batch):
            raise ValueError(
                f"{self.batch_size} sequences do not split into micro-batches of {layout.micro_batch} on {layout.data} "
                "replicas; choose a batch that divides"
            )
        return Setup(
            self.config, self.batch_size, micro_batch=layout.micro_batch, recompute=layout.recompute,
            pipeline=layout.pipeline, data=layout.data, tensor=layout.tensor, zero=layout.zero,
        )  # fmt: skip


@cache
def text_of(source: str) -> text.TextSource:
    """The text of this name."""
    return {"stories": text.stories, "words": Lexicon}[source]()


def build(training: Training, layout: Layout) -> tuple[HybridParallel, AnyOptimizer]:
    """This rank's part of the model, and the optimizer of its parameters. All ranks must call.

    Raises:
        ValueError: `training.setup` or `HybridParallel` refuses the layout.
    """
    pieces, dtype = int(training.setup(layout).micro_batches), getattr(torch, training.dtype)
    grid = HybridParallel(
        training.config, layout.mesh, micro_batches=pieces, zero=layout.zero, seed=training.seed, dtype=dtype,
        device=ranks.device(),
    )  # fmt: skip
    if layout.recompute == "full":
        recompute_only(grid, Block)
    elif layout.recompute == "selective":
        recompute_only(grid, Attention, "explicit")
    return grid, grid.optimizer(torch.optim.Adam, lr=training.rate, betas=(0.9, 0.95))


def train(
    training: Training, layout: Layout, folder: Path | None = None, every: int = 10, resume: bool = False
) -> Iterator[Line]:
    """Train, and yield a line after each step, the same on all ranks. All ranks must exhaust the lines.

    Args:
        training, layout: the training, and the way to share it.
        folder: the checkpoints' folder, seen by all ranks; None for no checkpoints.
        every: steps from checkpoint to checkpoint; the last step has one, too.
        resume: go on from the newest checkpoint, which other ranks may have written, in another layout.

    Raises:
        ValueError: there are checkpoints, and `resume` is False; or as `build`.
    """
    grid, optimizer = build(training, layout)
    checkpoints = Checkpoints(folder, grid, optimizer) if folder else None
    if checkpoints and checkpoints.steps() and not resume:
        raise ValueError(f"{folder} has checkpoints of steps {checkpoints.steps()}: give --resume, or another folder")
    first = checkpoints.resume()["step"] if checkpoints else 0
    for step in range(first, training.steps):
        for group in optimizer.param_groups:
            group["lr"] = training.rate_at(step)
        take = metered_step if step - first in (1, 2) else timed_step
        yield {"step": step} | take(grid, optimizer, training.batch(step))
        if checkpoints and ((step + 1) % every == 0 or step + 1 == training.steps):
            checkpoints.save(step + 1, wait=False)
    if checkpoints:
        checkpoints.wait()


def timed_step(grid: HybridParallel, optimizer: AnyOptimizer, batch: Batch) -> Line:
    """A step, with the loss before it, the seconds of the slowest rank, and the processor's for all ranks. All call."""
    dist.barrier()
    start, busy = time.perf_counter(), time.process_time()
    loss = grid.train_step(optimizer, batch)
    seconds, busy = zip(*of_all((time.perf_counter() - start, time.process_time() - busy)))
    return {"loss": loss.item(), "seconds": round(max(seconds), 6), "processor_seconds": round(sum(busy), 6)}


def metered_step(grid: HybridParallel, optimizer: AnyOptimizer, batch: Batch) -> Line:
    """A step under two meters, with the loss before it, and all ranks' bytes. All ranks must call.

    "held" has the bytes that `predict.rank_memory` counts: states between steps, and the most activations at a time.
    "peak" has all bytes alive at the worst moment, with tensors that live within an operation or two; with a single
    micro-batch "peak" may be less than "held", since gradients and activations hardly meet.
    """
    with measure.traffic() as sent, measure.memory(grid, optimizer) as memory:
        loss = grid.train_step(optimizer, batch)
    states = memory.after.parameters + memory.after.gradients + memory.after.optimizer
    held = states + Bytes(memory.timeline["activations"].max())
    bytes_ = {"held": int(held), "peak": int(memory.peak.total), "sent": int(sent.total_bytes)}
    return {"loss": loss.item()} | {name: of_all(n) for name, n in bytes_.items()}


def of_all(value: Any) -> list[Any]:
    """The values of all ranks, in rank order. All ranks must call."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def train_alone(training: Training) -> list[float]:
    """The oracle: the loss before each step of `train_step` on one device."""
    model = GPT(training.config, training.seed, ranks.device(), getattr(torch, training.dtype))
    optimizer = torch.optim.Adam(model.parameters(), lr=training.rate, betas=(0.9, 0.95))
    losses = []
    for step in range(training.steps):
        optimizer.param_groups[0]["lr"] = training.rate_at(step)
        losses.append(train_step(model, optimizer, training.batch(step)).item())
    return losses


def start(folder: Path, layout: Layout, *options: str) -> subprocess.Popen[bytes]:
    """Start torchrun on this machine, with as many ranks as the layout has; its output is added to `said.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", str(layout.mesh.size), "-m", "course_pages.lesson17.capstone", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    with (folder / "said.txt").open("ab") as said:
        command += [f"--{name.replace('_', '-')}={value}" for name, value in asdict(layout).items()]
        return subprocess.Popen([*command, *options], stdout=said, stderr=said, env=environment)


def said(folder: Path) -> list[Line]:
    """The lines of JSON that the runs of this folder have printed so far, one after the other."""
    path = folder / "said.txt"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def kept_promise() -> dict[str, Any]:
    """The stored run of `benchmarks/promise.py`: lesson 14's promise, and its outcome on four ranks, then two."""
    return json.loads(PROMISE.read_text("utf-8"))


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the checkpoints, seen by all machines")
    parser.add_argument("--config", type=json.loads, default={}, help="JSON: what differs from the GPT's shape here")
    parser.add_argument("--batch-size", type=int, default=Training.batch_size, help="sequences in a step, of all ranks")
    parser.add_argument("--steps", type=int, default=Training.steps, help="of the whole training")
    parser.add_argument("--every", type=int, default=10, help="steps from checkpoint to checkpoint")
    parser.add_argument("--rate", type=float, default=Training.rate, help="learning rate after the warm-up")
    parser.add_argument("--seed", type=int, default=0, help="of weights and text")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--source", default="stories", choices=["stories", "words"], help="the text")
    parser.add_argument("--pause-s", type=float, default=0.0, help="seconds to wait after every step")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    plan = parser.add_argument_group("layout", "in the words of `course plan`")
    plan.add_argument("--pipeline", type=int, default=1, help="ranks along this axis")
    plan.add_argument("--data", type=int, default=1, help="ranks along this axis")
    plan.add_argument("--tensor", type=int, default=1, help="ranks along this axis; they are neighbours")
    plan.add_argument("--zero", type=int, default=0, choices=range(4), help="stage of ZeRO along data")
    plan.add_argument("--micro-batch", type=int, default=Layout.micro_batch, help="sequences at once")
    again = ["none", "selective", "full"]
    plan.add_argument("--recompute", nargs="?", const="full", default="none", choices=again, help="full if it is alone")
    for name in ("context", "expert", "chunks"):
        plan.add_argument(f"--{name}", type=int, default=1, choices=[1], help="1: this run does not cut so")
    return parser


def layout_of(given: argparse.Namespace) -> Layout:
    """The layout that the command line's flags describe."""
    return Layout(**{each.name: getattr(given, each.name) for each in fields(Layout)})


def main() -> None:
    """Join the group, train, print on rank 0."""
    given = arguments().parse_args()
    torch.set_num_threads(1)  # a rank computes on one core, as in `ranks.run` and in `machine`
    die_with_the_agent()
    ranks.init()
    config = GPTConfig(**(asdict(Training().config) | given.config))
    training = Training(config, given.batch_size, given.steps, given.rate, given.seed, given.dtype, given.source)
    layout, seconds = layout_of(given), list[float]()
    for line in train(training, layout, given.folder, given.every, given.resume):
        seconds += [line["seconds"]] if "seconds" in line else []
        say(line)
        time.sleep(given.pause_s)
    say({"steps": training.steps, "layout": asdict(layout), "median_seconds": statistics.median(seconds or [0.0])})
    dist.destroy_process_group()


def say(line: Line) -> None:
    """Print a line of JSON on rank 0, in one piece."""
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
