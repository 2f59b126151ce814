"""Sharded checkpoints: every rank writes the shards that it alone holds, and any number of ranks reads them again.

    checkpoints = Checkpoints("runs/gpt", model, optimizer, scaler=scaler)       # all ranks, as all of the following
    start = checkpoints.resume()["step"]
    for step in range(start, steps):
        ...
        if (step + 1) % 100 == 0:
            checkpoints.save(step + 1, wait=False)      # writes while training goes on
    checkpoints.wait()

The parts:

    Checkpoints               gathers the whole state, so that a run that resumes on as many ranks ends with the bits
                              of a run that never stopped
    saved_shards              tells DCP which elements of which tensor lie on this rank
    DCP                       torch.distributed.checkpoint: plans which rank writes and reads which shard, writes files
    AtomicCheckpointWriter    decides when a folder is a checkpoint: by one rename, when all files are on the disk
"""

from __future__ import annotations

import copy
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from course_lib.model.seeds import mix
from course_lib.parallel import saved_shards as shards
from course_lib.parallel.hybrid import AnyOptimizer
from course_lib.parallel.saved_shards import Shard
from course_lib.parallel.zero import ZeroOptimizer


class Checkpoints:
    """The checkpoints of one training run, in one folder that all ranks see. All ranks must call every method.

    Saved are weights and buffers, the optimizer's state and settings, each rank's random state, the position, and
    `others`. ZeRO's weights are the optimizer's: fp32 for a model in 16 bits, which gets them rounded.

    Args:
        folder: made if it is not there.
        model: a module, a `Zero3`, or a `HybridParallel`; a buffer is saved as the first rank has it. A checkpoint of a
            `HybridParallel` loads into another one with as many tensor ranks, whatever its pipeline, its replicas and
            its ZeRO; with one tensor rank, into the plain GPT, too.
        optimizer: the model's `ZeroOptimizer` or torch optimizer. Ranks share the writing of tensors that all hold.
        keep: the number of checkpoints that stay.
        others: objects with `state_dict` and `load_state_dict`, the same on all ranks: a loss scaler, a scheduler.
    """

    def __init__(
        self, folder: str | Path, model: nn.Module, optimizer: AnyOptimizer, keep: int = 2, **others: Any
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: at least one checkpoint must stay")
        shards.saved_shards_of(model, optimizer)  # raises now, if model and optimizer do not belong together
        self.folder, self.model, self.optimizer, self.keep, self.others = Path(folder), model, optimizer, keep, others
        self.rule = optimizer.optimizer if isinstance(optimizer, ZeroOptimizer) else optimizer
        # a group of its own: a save in the background must not mix its messages into training
        self.group: Any = dist.new_group(backend="gloo")
        self._saving: Any = None
        self.folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, the oldest first."""
        return [int(path.name.removeprefix("step-")) for path in published(self.folder)]

    def save(self, step: int, wait: bool = True, **position: Any) -> None:
        """Write a checkpoint, and drop the oldest beyond `keep`.

        Args:
            step: the number of steps that have been trained.
            wait: False to copy this rank's shards and return; a thread writes them, and the next `save` waits for it.
            position: more of where training is, if the step does not tell all (an epoch).

        Raises:
            ValueError: there is a checkpoint of this step.
        """
        self.wait()
        if step in self.steps():
            raise ValueError(f"step {step} is saved already; {self.folder} holds {self.steps()}")
        state = self._state() | {"position": {"step": step} | position}
        state[f"random/{dist.get_rank()}"] = random_state()  # each rank's own generators
        writer = AtomicCheckpointWriter(self.folder, step, self.keep)
        dcp: dict[str, Any] = {"storage_writer": writer, "planner": shards.SavePlanner(), "process_group": self.group}
        if wait:
            save(state, **dcp)
        else:
            self._saving = async_save(state, **dcp)  # copies the shards first: `stage`, below

    def wait(self) -> None:
        """Wait until nothing is being saved; raises the error of a save in the background."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def resume(self) -> dict[str, Any]:
        """The position of the newest checkpoint, which is loaded; {"step": 0} where there is none yet."""
        return self.load() if self._agreed_steps() else {"step": 0}

    def load(self, step: int | None = None) -> dict[str, Any]:
        """Put model, optimizer, `others` and random state back, from the newest checkpoint or that of `step`.

        A rank beyond those of the save begins a new stream. Returns the position that `save` was given, with `step`.

        Raises:
            ValueError: there is no such checkpoint, or it is of another model.
        """
        self.wait()
        reader, metadata = self._open(step)
        shards.make_room(shards.saved_shards_of(self.model, self.optimizer), self.rule, metadata)
        state, own_random = self._state() | {"position": {}}, f"random/{dist.get_rank()}"
        if own_random in metadata.state_dict_metadata:
            state[own_random] = {}  # an entry asks DCP for the object
        load(state, storage_reader=reader, planner=shards.LoadPlanner(), process_group=self.group)
        shards.restore(state, shards.saved_shards_of(self.model, self.optimizer), self.rule)
        for name, other in self.others.items():
            other.load_state_dict(state[f"others/{name}"])
        if isinstance(self.optimizer, ZeroOptimizer):
            for bucket in self.optimizer.buckets:
                bucket.start_all_gather_weights().wait()  # each rank has read its own part only
        if own_random in state:
            set_random_state(state[own_random])
        else:
            seed_all(mix(state["position"]["step"], dist.get_rank()))
        return state["position"]

    def _state(self) -> dict[str, Any]:
        """The state dict that is saved, and that a load fills."""
        others = {f"others/{name}": other.state_dict() for name, other in self.others.items()}
        return shards.shards_of(shards.saved_shards_of(self.model, self.optimizer), self.rule) | others

    def _agreed_steps(self) -> list[int]:
        steps = [self.steps()]
        dist.broadcast_object_list(steps, group=self.group)  # ranks may see a dying run's last save, or not yet
        return steps[0]

    def _open(self, step: int | None) -> tuple[FileSystemReader, Metadata]:
        """The checkpoint's reader and metadata, if it is there and of this model."""
        steps = self._agreed_steps()
        if step not in (None, *steps) or not steps:
            files = sorted(path.name for path in self.folder.iterdir())
            wanted = "a complete checkpoint" if step is None else f"step {step}"
            raise ValueError(f"{wanted} is needed; {self.folder} holds {', '.join(files) or 'nothing'}")
        path = self.folder / step_name(steps[-1] if step is None else step)
        reader = FileSystemReader(path)
        metadata = reader.read_metadata()
        shards.refuse_another_model(metadata, self._shapes(), self.others, path)
        return reader, metadata

    def _shapes(self) -> dict[str, torch.Size]:
        """The shapes of all ranks' tensors that have an element: in a pipeline, each rank has other layers."""
        shapes = {name: tensor.shape for name, tensor in shards.whole_tensors(self.model).items() if tensor.numel()}
        of_ranks: list[dict[str, torch.Size]] = [{}] * dist.get_world_size()
        dist.all_gather_object(of_ranks, shapes, group=self.group)
        return {name: shape for each in of_ranks for name, shape in each.items()}


class AtomicCheckpointWriter(FileSystemWriter):
    """Writes to a `.partial` folder, renames it when every rank's file is on the disk, and only then drops the oldest.

    DCP calls `prepare_global_plan` and `finish` on one rank: after all have made a plan, and after all have written.
    """

    def __init__(self, folder: Path, step: int, keep: int) -> None:
        self.folder, self.final, self.keep = folder, folder / step_name(step), keep
        super().__init__(self.final.with_suffix(".partial"), sync_files=True)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Clear away the partial folders of killed saves."""
        for partial in self.folder.glob("*.partial"):
            shutil.rmtree(partial)
        Path(self.path).mkdir()
        return super().prepare_global_plan(plans)

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        """Make the folder a checkpoint."""
        super().finish(metadata, results)
        _sync(Path(self.path) / ".metadata")  # torch 2.13 syncs it before the last bytes have left Python
        _sync(Path(self.path))
        os.rename(self.path, self.final)  # atomic: a reader sees all of it or none
        _sync(self.folder)
        for old in published(self.folder)[: -self.keep]:
            os.rename(old, old.with_suffix(".partial"))  # never half a checkpoint under a checkpoint's name
            shutil.rmtree(old.with_suffix(".partial"))

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The copy that is saved while training goes on."""
        copies = {name: value.copy() for name, value in state_dict.items() if isinstance(value, Shard)}
        return copies | {name: copy.deepcopy(value) for name, value in state_dict.items() if name not in copies}


def published(folder: Path) -> list[Path]:
    """The folders of the complete checkpoints, the oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".partial")


def step_name(step: int) -> str:
    """A checkpoint's folder; names sort like steps."""
    return f"step-{step:08}"


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def random_state() -> dict[str, Any]:
    """The state of every global generator, from which dropout and many libraries draw (`model/seeds.py` does not)."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any]) -> None:
    """Put the global generators back to a state that `random_state` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def seed_all(seed: int) -> None:
    """Begin a new stream in every global generator."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # NumPy takes no more than 32 bits
    torch.manual_seed(seed)
