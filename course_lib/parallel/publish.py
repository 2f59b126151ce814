"""A checkpoint is there or it is not: all ranks write beside, one rename publishes.

A save that was killed must never be taken for a checkpoint. So all ranks write into `step-00000100.partial`; when all
is on the disk, one rename makes `step-00000100` of it. A rename happens or does not, even if the power fails.
"""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from course_lib.parallel.saved_shards import Shard


class Publisher(FileSystemWriter):
    """Writes beside, publishes by one rename when every rank's file is on the disk, and only then drops the oldest.

    DCP calls `prepare_global_plan` and `finish` on one rank: after all have made a plan, and after all have written.
    """

    def __init__(self, folder: Path, step: int, keep: int) -> None:
        self.folder, self.final, self.keep = folder, folder / step_name(step), keep
        super().__init__(self.final.with_suffix(".partial"), sync_files=True)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Clear away what killed saves have left."""
        for left in self.folder.glob("*.partial"):
            shutil.rmtree(left)
        Path(self.path).mkdir()
        return super().prepare_global_plan(plans)

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        """Publish."""
        super().finish(metadata, results)
        _sync(Path(self.path) / ".metadata")  # torch 2.13 syncs it before the last bytes have left Python
        _sync(Path(self.path))
        os.rename(self.path, self.final)
        _sync(self.folder)
        for old in published(self.folder)[: -self.keep]:
            os.rename(old, old.with_suffix(".partial"))  # never half a checkpoint under a checkpoint's name
            shutil.rmtree(old.with_suffix(".partial"))

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The copy that is saved while training goes on."""
        copies = {name: value.copy() for name, value in state_dict.items() if isinstance(value, Shard)}
        return copies | {name: copy.deepcopy(value) for name, value in state_dict.items() if name not in copies}


def published(folder: Path) -> list[Path]:
    """The complete checkpoints, the oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".partial")


def step_name(step: int) -> str:
    """A checkpoint's folder; names sort like steps."""
    return f"step-{step:08}"


def _sync(path: Path) -> None:
    """Until the disk has it."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)
