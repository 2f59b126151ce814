"""Models that nobody here wrote: saved on two ranks, resumed on another number, under another wrapper."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_kit import ranks
from course_lib.parallel.checkpoint import Checkpoints
from course_lib.parallel.data import NaiveDataParallel
from course_lib.parallel.zero3 import Zero3
from tests.foreign import runs
from tests.foreign.models import MODELS, over
from tests.foreign.runs import How, Run
from tests.foreign.test_wrappers import on_ranks, roundings

ROWS = 12
"""Of every batch: shares of 1, 2, 3 and 4 ranks are equal."""
SAVED, LAST = 2, 4
"""Steps before the checkpoint, and in all."""
PAIRS: list[tuple[str, How, How]] = [
    ("gpt2", "zero3", "bucketed"),  # tied
    ("llama", "zero3", "zero3"),  # buffers that are not saved
    ("t5", "zero2", "zero1"),  # one table in three places
    ("mixtral", "zero1", "zero3"),
    ("deepseek", "zero2", "zero2"),  # a buffer that is saved, and others that are not
    ("clip", "zero3", "zero2"),  # a weight that never has a gradient
    ("resnet", "bucketed", "zero3"),  # statistics
    ("shared transformer", "bucketed", "zero1"),
]


def a_run(name: str, how: How, seed: int) -> Run:
    """A wrapped model in 64 bits."""
    return runs.start(how, MODELS[name], MODELS[name].model(seed, torch.float64))


def checkpoints(run: Run, folder: Path) -> Checkpoints:
    """Of a run."""
    model = run.model.module if isinstance(run.model, NaiveDataParallel) else run.model
    return Checkpoints(folder, model, run.optimizer)


def save(name: str, how: How, folder: Path) -> dict[str, Tensor]:
    """Train, save, and return the whole weights."""
    run = a_run(name, how, seed=dist.get_rank())
    runs.train(run, MODELS[name], range(SAVED), dtype=torch.float64, rows=ROWS)
    checkpoints(run, folder).save(SAVED)
    return run.weights()


def resume(name: str, how: How, folder: Path, saved: dict[str, Tensor], savers: int) -> tuple[list[str], float, str]:
    """Load into another model, go on, and compare with a single process that never stopped.

    Returns:
        the names of weights and buffers that differ from the saved ones; how far the end is from the single process's,
        and where.
    """
    run = a_run(name, how, seed=7)
    runs.train(run, MODELS[name], [9], dtype=torch.float64, rows=ROWS)  # a state of its own, which must go
    step = checkpoints(run, folder).resume()["step"]
    loaded = run.weights()
    assert loaded.keys() == saved.keys(), f"{loaded.keys() ^ saved.keys()} are on one side only"
    differ = [each for each, tensor in saved.items() if not torch.equal(loaded[each], tensor)]
    runs.train(run, MODELS[name], range(step, LAST), dtype=torch.float64, rows=ROWS)
    alone = runs.Alone(MODELS[name].model(0, torch.float64), MODELS[name])
    alone.train(range(step), savers, ROWS)
    alone.train(range(step, LAST), dist.get_world_size(), ROWS)
    due = runs.parameters_of(alone.module.state_dict(), alone.module)
    off = runs.distance(runs.parameters_of(run.weights(), alone.module), due)
    return (differ, *max([(0.0, ""), *((number, each) for each, number in off.items())]))


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "saves", "resumes"), PAIRS)
def test_a_run_goes_on_with_other_ranks_as_if_it_had_never_stopped(
    tmp_path: Path, name: str, saves: How, resumes: How
) -> None:
    saved = on_ranks(save, name, saves, tmp_path)
    for world_size in (1, 3, 4):
        answer = on_ranks(resume, name, resumes, tmp_path, saved, 2, world_size=world_size)
        differ, off, where = answer
        assert differ == [], f"{name}, 2 × {saves} → {world_size} × {resumes}: {differ} are not what was saved"
        limit = roundings(torch.float64, shares=4, steps=LAST)
        assert off <= limit, f"{name}, 2 × {saves} → {world_size} × {resumes}: {where} is off by {off:.1e} at the end"


def state_of(name: str) -> None:
    """The names of a sharded model's states are the plain module's, and each takes the other's. All ranks call."""
    foreign = MODELS[name]
    plain, other = foreign.model(0), foreign.model(1)
    model = Zero3(foreign.model(2))
    model.load_gathered_state_dict(plain.state_dict())
    gathered = model.gathered_state_dict()
    other.load_state_dict(gathered)  # strict: no name too many, none missing
    for each, tensor in plain.state_dict().items():
        assert torch.equal(gathered[each], tensor), f"{each} is not what was loaded"
        assert torch.equal(other.state_dict()[each], tensor), f"{each} did not come over"
    model.load_gathered_state_dict(gathered)
    missing = {each for each, _ in plain.named_parameters()} - set(model.state_dict())
    more = set(model.state_dict()) - set(plain.state_dict())
    assert not missing and not more, f"shards: {missing} are missing, {more} too many"


@pytest.mark.parametrize("name", over(MODELS))
def test_whole_weights_go_in_and_come_out(name: str) -> None:
    ranks.run(state_of, name, world_size=2, timeout_s=60, diagnose=False)
