"""Checkpoints of a grid: resumed is uninterrupted, and another pipeline, other replicas, another ZeRO load the same."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from course_kit import ranks
from course_kit.ranks import RankFailure
from course_lib.collectives.operators import own_part
from course_lib.model.gpt import GPT
from course_lib.parallel.checkpoint import Checkpoints
from course_lib.parallel.hybrid import AXES, HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.parallel.saved_shards import saved_shards_of
from course_lib.parallel.tensor_gpt import shardings
from course_lib.parallel.zero3 import Zero3
from course_lib.train.step import train_step
from tests.mutants.parallel import checkpoint as wrong
from tests.parallel.checkpoint_checks import assert_equal, joined, pieces
from tests.parallel.judging import refused
from tests.parallel.parity import LIMIT
from tests.parallel.test_hybrid import TIED, batch_of

RULE: Any = torch.optim.AdamW
SETTINGS = {"lr": 0.01, "weight_decay": 0.1}


class Shape(NamedTuple):
    """Of a grid: (pipeline, data, tensor), the stage of ZeRO, the schedule."""

    sizes: tuple[int, int, int]
    zero: int = 1
    schedule: str = "1f1b"

    def grid(self, seed: int, **change: Any) -> HybridParallel:
        config = dataclasses.replace(TIED, **change)
        how: dict[str, Any] = {"zero": self.zero, "schedule": self.schedule, "seed": seed, "dtype": torch.float64}
        return HybridParallel(config, Mesh(dict(zip(AXES, self.sizes))), micro_batches=2, **how)


def save(shape: Shape, folder: Path, make: Any = Checkpoints, steps: int = 2) -> list[Any]:
    """Some steps, and a checkpoint. Returns this rank's pieces."""
    grid = shape.grid(seed=0)
    optimizer = grid.optimizer(RULE, **SETTINGS)
    for step in range(steps):
        grid.train_step(optimizer, batch_of(step))
    make(folder, grid, optimizer).save(steps)
    return pieces(grid, optimizer)


def load(shape: Shape, folder: Path, make: Any = Checkpoints) -> tuple[list[Any], list[Any]]:
    """Load into other weights, look, and go on beside a single process that never stopped. Returns this rank's pieces,
    as they were loaded and two steps later."""
    grid, single = shape.grid(seed=1), GPT(TIED, dtype=torch.float64)
    optimizer, theirs = grid.optimizer(RULE, **SETTINGS), RULE(single.parameters(), **SETTINGS)
    grid.train_step(optimizer, batch_of(7))  # a state of its own, which must go
    assert make(folder, grid, optimizer).resume() == {"step": 2}
    loaded = pieces(grid, optimizer)
    for step in range(4):
        wanted = train_step(single, theirs, batch_of(step))
        if step >= 2:
            loss = grid.train_step(optimizer, batch_of(step))
            assert abs(loss - wanted) <= LIMIT, f"step {step}: the loss is {loss}, the oracle's {wanted}"
            assert_weights(grid, optimizer, single, step)
    return loaded, pieces(grid, optimizer)


def assert_weights(grid: HybridParallel, optimizer: Any, single: GPT, step: int) -> None:
    """What the optimizer updates on this rank is its part of the oracle's weights."""
    oracle, known = dict(single.named_parameters()), {}
    for stage in grid.stages.values():
        known |= shardings(stage.module if isinstance(stage, Zero3) else stage)
    for name, _, begin, owner in saved_shards_of(grid, optimizer):
        whole, cut = oracle[name.partition("/")[0]].detach(), known.get(name.partition("/")[0])
        part = own_part(whole, cut.dim, grid.groups["tensor"], cut.blocks) if cut else whole
        off = (owner.detach().reshape(-1) - part.reshape(-1)[begin : begin + owner.numel()]).abs()
        assert off.numel() == 0 or off.max() <= LIMIT, f"step {step}: {name} is off by {off.max():.1e}"


def on(shape: Shape, *args: Any) -> list[Any]:
    """Of all its ranks."""
    call, *rest = args
    return ranks.run(call, shape, *rest, world_size=math.prod(shape.sizes), diagnose=False)


@pytest.mark.parametrize(
    "shape",
    [Shape((1, 2, 2), 3), pytest.param(Shape((2, 2, 2)), marks=pytest.mark.nightly)],
    ids=lambda shape: f"{shape.sizes}, ZeRO {shape.zero}",
)
def test_resumed_is_uninterrupted_bit_for_bit(tmp_path, shape):
    saved = on(shape, save, tmp_path)
    found, due = on(shape, load, tmp_path), on(shape, save, tmp_path / "other", Checkpoints, 4)
    for rank, (loaded, later) in enumerate(found):
        for when, ours, theirs in (("loaded", loaded, saved[rank]), ("2 steps later", later, due[rank])):
            assert [each[:3] for each in ours] == [each[:3] for each in theirs]
            for (name, *_, value), (*_, wanted) in zip(ours, theirs):
                assert torch.equal(value, wanted), f"rank {rank}, {when}: {name} differs"


SAVED = {Shape((2, 2, 1)): [Shape((2, 1, 1)), Shape((1, 4, 1), 3)], Shape((1, 2, 2), 2): [Shape((2, 1, 2), 0)]}
"""What is saved → what loads it: fewer and more replicas, another pipeline, other stages of ZeRO."""


@pytest.mark.parametrize("saves", SAVED, ids=lambda shape: f"{shape.sizes}, ZeRO {shape.zero}")
def test_another_grid_loads_the_same_tensors(tmp_path, saves):
    whole = joined(on(saves, save, tmp_path))
    for loads in SAVED[saves]:
        assert_equal(joined([loaded for loaded, _ in on(loads, load, tmp_path)]), whole, f"{saves} → {loads}")


def test_the_plain_model_loads_it(tmp_path):
    whole = joined(on(Shape((2, 2, 1)), save, tmp_path))

    def alone():
        model = GPT(TIED, seed=1, dtype=torch.float64)
        optimizer = RULE(model.parameters(), **SETTINGS)
        Checkpoints(tmp_path, model, optimizer).load()
        return pieces(model, optimizer)

    assert_equal(joined(ranks.run(alone, world_size=1, diagnose=False)), whole, "one process")


@pytest.mark.parametrize("mutant", wrong.WRONG_GRIDS)
def test_what_a_grid_forgets_is_noticed(tmp_path, mutant):
    shape = Shape((1, 1, 2))
    on(shape, save, tmp_path, mutant)
    with pytest.raises(RankFailure, match="AssertionError: step 2: "):
        on(shape, load, tmp_path, mutant)


def test_what_cannot_be_is_refused(tmp_path):
    on(Shape((1, 1, 2)), save, tmp_path)
    cut = "was saved on 2 tensor ranks, and here a layer is cut over {0}: .*load with tensor=2 "
    tied = "two stages of one rank hold token_embedding.weight; give 1f1b, or an untied"
    for world_size, call, shape, folder, says in (
        (2, load, Shape((2, 1, 1)), tmp_path, cut.format(1)),
        (4, load, Shape((1, 1, 4)), tmp_path, cut.format(4)),
        (2, save, Shape((1, 2, 1), 1, "interleaved"), tmp_path / "other", tied),
    ):
        assert refused(world_size, [(functools.partial(call, shape, folder), says)]) == []
