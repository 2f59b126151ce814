"""Known-wrong checkpoints. Each takes the arguments of `Checkpoints`, and has one fault."""

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from course_lib.parallel import checkpoint
from course_lib.parallel import saved_shards as shards
from course_lib.parallel.checkpoint import AtomicCheckpointWriter, Checkpoints


class _Other(Checkpoints):  # publishes otherwise
    publisher: type[AtomicCheckpointWriter]

    def save(self, step: int, wait: bool = True, **position: Any) -> None:
        checkpoint.AtomicCheckpointWriter, usual = self.publisher, checkpoint.AtomicCheckpointWriter  # type: ignore[misc]
        try:
            super().save(step, wait, **position)
        finally:
            checkpoint.AtomicCheckpointWriter = usual  # type: ignore[misc]


class PublishesEarly(_Other):
    """Writes where the checkpoint shall be: its name is there before it is complete."""

    class publisher(AtomicCheckpointWriter):  # noqa: N801
        """No folder beside."""

        def __init__(self, folder: Path, step: int, keep: int) -> None:
            super().__init__(folder, step, keep)
            self.path = self.final
            dist.barrier()  # every rank has seen by now that the step is not there

        def prepare_global_plan(self, plans: Any) -> Any:
            return super(AtomicCheckpointWriter, self).prepare_global_plan(plans)


class DropsFirst(_Other):  # makes room on the disk before the new one is good
    class publisher(AtomicCheckpointWriter):  # noqa: N801
        """Drops before anybody writes."""

        def prepare_global_plan(self, plans: Any) -> Any:
            for old in checkpoint.published(self.folder):
                shutil.rmtree(old)
            return super().prepare_global_plan(plans)


class DoesNotCopy(_Other):  # saves in the background what training changes meanwhile
    class publisher(AtomicCheckpointWriter):  # noqa: N801
        """Stages the thing itself."""

        def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
            return state_dict


class WaitsAnyway(Checkpoints):  # in the background, they say
    def save(self, step: int, wait: bool = True, **position: Any) -> None:
        super().save(step, True, **position)


class DoesNotSyncMetadata(_Other):  # trusts DCP's own sync of `.metadata`
    class publisher(AtomicCheckpointWriter):  # noqa: N801
        """Without ours."""

        def finish(self, metadata: Any, results: Any) -> None:
            sync, checkpoint._sync = checkpoint._sync, lambda path: None
            try:
                super().finish(metadata, results)
            finally:
                checkpoint._sync = sync


class EachSavesEverything(Checkpoints):
    """Every rank gathers all of it, and writes it under a name of its own."""

    def _state(self) -> dict[str, Any]:
        found, whole = super()._state(), {}
        for name, shard in found.items():
            if isinstance(shard, shards.Shard):
                flat = torch.zeros(shard.shape.numel(), dtype=shard.elements.dtype)
                flat[shard.begin : shard.begin + len(shard.elements)] = shard.elements
                whole[f"random/{dist.get_rank()}/{name}"] = shards.Shard(shard.shape, 0, flat)
        return found | whole


class ForgetsTheStepCount(Checkpoints):
    """Adam corrects its moments again as if they were one step old."""

    def load(self, step: int | None = None) -> dict[str, Any]:
        position = super().load(step)
        for state in self.rule.state.values():
            state["step"].zero_()
        return position


class ForgetsRandomState(Checkpoints):  # drops other elements after the load
    def load(self, step: int | None = None) -> dict[str, Any]:
        """With the random state of the process that loads."""
        now = torch.get_rng_state()
        position = super().load(step)
        torch.set_rng_state(now)
        return position


class ForgetsMasters(Checkpoints):
    """Saves the weights in 16 bits, and takes these for the optimizer's."""

    def load(self, step: int | None = None) -> dict[str, Any]:
        position = super().load(step)
        for cut in shards.saved_shards_of(self.model, self.optimizer):
            cut.owner.data = cut.owner.data.bfloat16().to(cut.owner.dtype)
        return position


class OnePartForAll(Checkpoints):
    """Saves the tensor ranks' parts under one name, so that one of them is written."""

    def _state(self) -> dict[str, Any]:
        with mock.patch.object(shards, "part_name", lambda stage, name: ""):
            return super()._state()

    def _shapes(self) -> dict[str, torch.Size]:
        with mock.patch.object(shards, "part_name", lambda stage, name: ""):
            return super()._shapes()

    def load(self, step: int | None = None) -> dict[str, Any]:
        with mock.patch.object(shards, "part_name", lambda stage, name: ""):
            return super().load(step)


WRONG_GRIDS = [OnePartForAll, ForgetsTheStepCount]
WRONG_RUNS = {ForgetsTheStepCount: "zero2", ForgetsRandomState: "zero2", ForgetsMasters: "bf16"}
"""Each with the kind of training in which it is wrong."""
WRONG_SAVES = [PublishesEarly, DropsFirst]
