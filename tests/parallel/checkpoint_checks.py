"""What checkpoints must do. Each check runs on ranks and raises where it is not so.

The tests call these with `Checkpoints`, and with the known-wrong ones of `tests/mutants/parallel/checkpoint.py`.
"""

import os
import shutil
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.parallel.checkpoint import AtomicCheckpointWriter, Checkpoints
from course_lib.parallel.saved_shards import saved_shards_of
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.parallel.zero3 import Zero3
from course_lib.train.precision import LossScaler

Make = Callable[..., Checkpoints]
Kind = Literal["zero1", "zero2", "zero3", "plain", "momentum", "bf16", "zero3 bf16", "plain bf16"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Noisy(nn.Module):
    """Draws from the process's random state; has what trains, what is frozen, what is counted; sizes divide badly."""

    def __init__(self, seed: int, width: int = 7) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(5, width), nn.Linear(width, 3)
        self.frozen = nn.Linear(5, width).requires_grad_(False)
        self.turned = nn.Parameter(torch.randn(width, 3).t())  # memory that is not contiguous
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("passing", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        hidden = nn.functional.dropout(torch.tanh(self.first(x) + self.frozen(x)), 0.3)
        return (self.scale * self.last(hidden) + hidden @ self.turned.t()).square().mean()


class Training:
    """A model, its optimizer, a loss scaler, a schedule; `go` trains."""

    def __init__(self, kind: Kind = "zero2", seed: int = 0, width: int = 7) -> None:
        self.dtype = torch.bfloat16 if "bf16" in kind else torch.float32
        module = Noisy(seed, width).to(self.dtype)
        self.model = Zero3(module, bucket_bytes=64, units=[module.first, module.last]) if "zero3" in kind else module
        parameters = [{"params": list(self.model.parameters()), "betas": (0.8, 0.99)}]
        if "plain" in kind or "zero3" in kind:
            self.optimizer = torch.optim.AdamW(parameters, lr=0.01)
        elif kind == "momentum":
            self.optimizer = ZeroOptimizer(self.model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
        else:
            stage = 1 if kind == "zero1" else 2
            self.optimizer = ZeroOptimizer(parameters, torch.optim.AdamW, stage=stage, bucket_bytes=64, lr=0.01)
        self.rule: Any = getattr(self.optimizer, "optimizer", self.optimizer)
        self.scaler = LossScaler(init_scale=4.0, growth_interval=2)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.rule, lambda step: 1 / (1 + step))

    def checkpoints(self, make: Make, folder: Path, keep: int = 2) -> Checkpoints:
        return make(folder, self.model, self.optimizer, keep=keep, scaler=self.scaler, schedule=self.schedule)

    def go(self, first: int, last: int) -> None:
        """The steps from `first` to before `last`."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        for step in range(first, last):
            x = torch.randn(12, 5, generator=torch.Generator().manual_seed(step)).chunk(ranks)[rank]
            self.optimizer.zero_grad()
            self.model(x.to(self.dtype)).backward()
            if isinstance(self.model, Zero3):
                self.model.synchronize()
            elif self.rule is self.optimizer:
                for parameter in self.model.parameters():
                    if parameter.grad is not None:
                        dist.all_reduce(parameter.grad.div_(ranks))
            self.optimizer.step()
            self.schedule.step()
            self.scaler._overflows = {self.rule: False}
            self.scaler.update()

    def weights(self) -> dict[str, Tensor]:
        """The whole model's, on every rank."""
        state = self.model.gathered_state_dict() if isinstance(self.model, Zero3) else self.model.state_dict()
        return {name: tensor.clone() for name, tensor in state.items()}

    def everything(self) -> dict[str, Any]:
        """What a run's future depends on, on this rank."""
        own = {f"{name}/{begin}": tensor for name, _, begin, tensor in pieces(self.model, self.optimizer)}
        counts = [float(state["step"]) for state in self.rule.state.values() if "step" in state]
        weights = {f"model/{name}": tensor for name, tensor in self.weights().items()}
        known = {"counts": counts, "scaler": self.scaler.state_dict(), "schedule": self.schedule.state_dict()}
        return own | weights | known | {"random": torch.get_rng_state(), "lr": self.rule.param_groups[0]["lr"]}


def assert_equal(found: dict[str, Any], wanted: dict[str, Any], when: str) -> None:
    """Bit for bit."""
    assert found.keys() == wanted.keys(), f"{when}: {sorted(found.keys() ^ wanted.keys())} are on one side only"
    for name, value in wanted.items():
        same = torch.equal(found[name], value) if isinstance(value, Tensor) else str(found[name]) == str(value)
        assert same, f"{when}: {name} differs"


def check_resume(make: Make, kind: Kind, folder: Path, wait: bool = True) -> None:
    """Save in the middle, load into a model of another seed, go on: the bits of a run that was not stopped."""
    steady = Training(kind)
    torch.manual_seed(100 + dist.get_rank())  # each rank drops elements of its own
    checkpoints = steady.checkpoints(make, folder)
    steady.go(0, 3)
    checkpoints.save(3, wait, epoch=1)
    steady.go(3, 6)
    checkpoints.wait()
    resumed = Training(kind, seed=1)
    position = resumed.checkpoints(make, folder).load()
    assert position == {"step": 3, "epoch": 1}, f"the position is {position}"
    resumed.go(3, 6)
    assert_equal(resumed.everything(), steady.everything(), "3 steps after the load")


def save_one(make: Make, kind: Kind, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """Train and save. Returns the model's weights, and where this rank's pieces lie."""
    training = Training(kind)
    checkpoints = training.checkpoints(make, folder)
    training.go(0, 3)
    checkpoints.save(3)
    return training.weights(), pieces(training.model, training.optimizer)


def load_one(make: Make, kind: Kind, folder: Path, steps: int = 0) -> tuple[dict[str, Any], list[Any]]:
    """Load into another model, on however many ranks. Returns what `save_one` does; then goes on."""
    training = Training(kind, seed=1)
    training.go(0, 1)  # a state of its own, which must go
    training.checkpoints(make, folder).load()
    loaded = training.weights(), pieces(training.model, training.optimizer)
    training.go(3, 3 + steps)
    return loaded


def pieces(model: Any, optimizer: Any) -> list[Any]:
    """(name, shape, place of the first element, elements) of weights and states on this rank, by name."""
    found = [
        (f"{key}/{cut.name}", cut.shape, cut.begin, tensor.detach().flatten().clone())
        for cut in saved_shards_of(model, optimizer)
        for key, tensor in cut.tensors(getattr(optimizer, "optimizer", optimizer)).items()
    ]
    return sorted(found, key=lambda piece: piece[0])


def joined(per_rank: list[list[Any]]) -> dict[str, Tensor]:
    """The whole tensors, from all ranks' pieces; every element must be there."""
    whole: dict[str, Tensor] = {}
    for name, shape, begin, elements in [piece for each in per_rank for piece in each]:
        flat = whole.setdefault(name, torch.full((shape.numel(),), torch.nan, dtype=torch.float64))
        flat[begin : begin + len(elements)] = elements
    for name, flat in whole.items():
        assert not flat.isnan().any(), f"{name}: elements of it are nowhere"
    return whole


def check_bytes(make: Make, folder: Path, width: int = 6000) -> None:
    """A rank's file holds its part of weights and moments, 12Ψ/N bytes, and all files together 12Ψ."""
    training = Training("zero1", width=width)
    training.optimizer = ZeroOptimizer(training.model.parameters(), torch.optim.AdamW, lr=0.01)
    training.rule = training.optimizer.optimizer
    training.go(0, 1)
    training.checkpoints(make, folder).save(1)
    dist.barrier()
    trained = sum(p.numel() for p in training.model.parameters() if p.requires_grad)
    frozen = sum(p.nbytes for p in training.model.parameters() if not p.requires_grad)
    due, names = 12 * trained, 4 * len(list(training.model.parameters())) + 20
    files = {path.name: path.stat().st_size for path in (folder / "step-00000001").iterdir()}
    own = files[f"__{dist.get_rank()}_0.distcp"]
    head = 2000 * names  # what DCP and torch.save write around tensors, and the random state
    assert own <= due / dist.get_world_size() + frozen + head, f"a rank has written {own} of {due} bytes"
    total = sum(files.values())
    assert due + frozen <= total <= due + frozen + head * dist.get_world_size(), f"{total} bytes on disk for {due}"


def check_no_leak(make: Make, folder: Path) -> None:
    """What changes after `save(wait=False)` has returned is not in the checkpoint: writing waits until it has."""
    training, changed = Training(), threading.Event()
    checkpoints = training.checkpoints(make, folder)
    training.go(0, 2)
    then, write = training.everything(), AtomicCheckpointWriter.write_data

    def write_late(self: Any, *args: Any) -> Any:
        changed.wait(20)
        return write(self, *args)

    AtomicCheckpointWriter.write_data = write_late  # type: ignore[method-assign]
    try:
        checkpoints.save(2, wait=False)
        training.go(2, 4)
        changed.set()
        checkpoints.wait()
    finally:
        AtomicCheckpointWriter.write_data = write  # type: ignore[method-assign]
    training.checkpoints(make, folder).load()
    assert_equal(training.everything(), then, "the checkpoint")


Point = tuple[int, str, int]
"""Where to die: rank, event, and the how manieth it is: "c_return rename", or "" for everything that Python calls."""


def save_and_die(make: Make, folder: Path, point: Point | None) -> int:
    """Go on from step 1, and save step 2; the rank of `point` kills itself there. Returns the number of calls."""
    training = Training("zero1")
    checkpoints = training.checkpoints(make, folder, keep=1)
    checkpoints.load()
    training.go(1, 2)
    count = 0
    dies_in, wanted, number = point or (-1, "", 0)

    def at_every_event(frame: Any, event: str, function: Any) -> None:
        nonlocal count
        count += not wanted or f"{event} {getattr(function, '__name__', '')}" == wanted
        if count == number and dist.get_rank() == dies_in:
            os.kill(os.getpid(), signal.SIGKILL)

    dist.barrier()
    sys.setprofile(at_every_event)
    try:
        checkpoints.save(2)
    finally:
        sys.setprofile(None)
    return count


def check_survivors(make: Make, folders: list[Path], good: dict[int, Any]) -> list[int]:
    """Each folder loads as what was saved in step 1 or in step 2, and takes the next save. Returns which."""
    steps = []
    for folder in folders:
        training = Training("zero1", seed=5)
        checkpoints = training.checkpoints(make, folder, keep=1)
        step = checkpoints.load()["step"]
        assert_equal(training.everything(), good[step][dist.get_rank()], f"{folder.name}: step {step}")
        checkpoints.save(3)
        dist.barrier()
        assert [path.name for path in folder.iterdir()] == ["step-00000003"], f"{list(folder.iterdir())} stay"
        steps.append(step)
    return steps


def good_states(make: Make, folder: Path) -> dict[int, Any]:
    """Save step 1; what steps 1 and 2 are."""
    training = Training("zero1")
    checkpoints = training.checkpoints(make, folder, keep=1)
    training.go(0, 1)
    checkpoints.save(1)
    first = training.everything()
    training.go(1, 2)
    return {1: first, 2: training.everything()}


def copy_of(folder: Path, name: str) -> Path:
    """Beside it."""
    return Path(shutil.copytree(folder, folder.parent / name))


def check_synced(make: Make, folder: Path) -> None:
    """At the moment of the rename, every file and the folder itself have been synced in their final size."""
    synced: dict[str, int] = {}
    sync, rename, seen = os.fsync, os.rename, []

    def note_sync(file: int) -> None:
        sync(file)
        path = os.readlink(f"/proc/self/fd/{file}")
        synced[path.removesuffix(".tmp")] = os.fstat(file).st_size

    def note_rename(old: Path, new: Path) -> None:
        if Path(new).name.startswith("step-"):
            own = f"__{dist.get_rank()}_"
            for path in [*Path(old).iterdir(), Path(old)]:
                if path.suffix != ".distcp" or path.name.startswith(own):
                    seen.append((path.name, synced.get(str(path.resolve())), path.stat().st_size))
        rename(old, new)

    training = Training()
    checkpoints = training.checkpoints(make, folder)
    os.fsync, os.rename = note_sync, note_rename  # type: ignore[assignment]
    try:
        checkpoints.save(1)
    finally:
        os.fsync, os.rename = sync, rename
    assert bool(seen) == (dist.get_rank() == 0), "one rank publishes"
    for name, done, size in seen:
        assert done == size, f"{name} is published with {size} bytes, of which {done} were synced"
    mine = [path for path in synced if f"__{dist.get_rank()}_0" in path]
    assert mine, "this rank has not synced its file"


def check_goes_on(make: Make, folder: Path) -> None:
    """A save in the background returns while the disk has not yet synced a file: this one syncs when it is told to."""
    training, sync, told, seen = Training("zero1"), os.fsync, threading.Event(), []
    checkpoints = training.checkpoints(make, folder)
    training.go(0, 1)

    def wait_and_sync(file: int) -> None:
        seen.append(told.wait(0 if False in seen else 2))
        sync(file)

    os.fsync = wait_and_sync
    try:
        checkpoints.save(1, wait=False)
        told.set()
        checkpoints.wait()
    finally:
        os.fsync = sync
    assert seen and all(seen), "training waits until all is written"


def check_wait(make: Make, folder: Path) -> None:
    """On a slow disk, a save in the background keeps training less than half as long as one that it waits for."""
    training, sync = Training("zero1", width=80_000), os.fsync
    training.go(0, 1)
    checkpoints = training.checkpoints(make, folder)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    os.fsync = lambda file: (time.sleep(0.3), sync(file))[1]  # so that a busy processor does not decide
    try:
        for step in range(1, 7):
            dist.barrier()
            start = time.perf_counter()
            checkpoints.save(step, wait=bool(step % 2))
            seconds[bool(step % 2)].append(time.perf_counter() - start)
            checkpoints.wait()
    finally:
        os.fsync = sync
    ratio = statistics.median(seconds[False]) / statistics.median(seconds[True])
    assert ratio < 0.5, f"training waits {ratio:.2f} times as long as without a copy"
