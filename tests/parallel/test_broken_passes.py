"""A backward pass that ended in an error leaves nothing behind once it is forgotten, and says so if it is not."""

import functools
import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_kit import ranks
from course_kit.ranks import RankFailure
from course_lib.model.gpt import GPT
from course_lib.parallel import BucketedDataParallel
from course_lib.parallel.hybrid import HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.parallel.zero3 import Zero3
from course_lib.train.step import train_step
from tests.parallel.judging import on_ranks
from tests.parallel.parity import gradients_of
from tests.parallel.test_parity import GRID, but


def replica(overlap, is_told, layers):
    """The model, what forgets, and a function that returns the mean gradients."""
    wrapped = BucketedDataParallel(layers, bucket_bytes=64, overlap=overlap)

    def gradients():
        wrapped.synchronize()
        return gradients_of(layers)

    return wrapped, wrapped if is_told else layers, gradients


def stage(number, layers):
    optimizer = ZeroOptimizer(layers.parameters(), torch.optim.SGD, stage=number, bucket_bytes=64, lr=0.1)
    return layers, optimizer, lambda: optimizer.gathered_gradients(layers)


def stage_3(layers):
    model = Zero3(layers, units=list(layers), bucket_bytes=64)

    def gradients():
        assert not model._is_backward, "the next forward pass would keep each unit"
        return model.gathered_gradients()

    return model, model, gradients


def off_after_a_broken_pass(wrap):
    """Gradients of a pass after one that broke off in the middle, over those of a run without it."""
    found = []
    for breaks in (False, True):
        torch.manual_seed(0)
        layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
        x = torch.ones(2, 4, requires_grad=True) * (1 + dist.get_rank())
        model, forgets, gradients = wrap(layers)
        if breaks:
            hook = layers[1].register_full_backward_pre_hook(lambda *_: 1 / 0)  # type: ignore[arg-type]
            with pytest.raises(ZeroDivisionError):
                model(x).sum().backward()
            hook.remove()
            forgets.zero_grad()
        model(x).sum().backward()
        found.append(gradients())
    right, after = found
    assert len(right) == 8 and right.keys() == after.keys()
    return max(float((after[name] - right[name]).abs().max()) for name in right)


WRAPS = [
    *(functools.partial(replica, overlap, True) for overlap in (True, False)),
    *(functools.partial(stage, number) for number in (1, 2)),
    stage_3,
]


@on_ranks(2)
def test_zero_grad_forgets_a_backward_pass_that_broke_off():
    for wrap in WRAPS:
        assert off_after_a_broken_pass(wrap) == 0, wrap


@pytest.mark.parametrize("overlap", [True, False])
def test_a_replica_that_is_not_told_refuses_the_next_pass(overlap):
    with pytest.raises(RankFailure, match="a new pass begins, but"):
        ranks.run(off_after_a_broken_pass, functools.partial(replica, overlap, False), world_size=2)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@on_ranks(2, diagnose=False)
def test_a_step_that_broke_off_leaves_nothing_for_the_next(zero):
    """The losses of two steps behind one whose second micro-batch has failed are one process's without it."""
    config, calls = but(GRID, layers=2).config, itertools.count()
    single = GPT(config, dtype=torch.float64)
    theirs = torch.optim.SGD(single.parameters(), lr=0.5)
    how = {"micro_batches": 2, "dtype": torch.float64, "zero": zero}
    grid = HybridParallel(config, Mesh({"pipeline": 1, "data": 2, "tensor": 1}), **how)
    ours = grid.optimizer(torch.optim.SGD, lr=0.5)

    def fail(*_):
        if next(calls) == 1:
            raise KeyError("in the second micro-batch")

    hook = grid.stages["0"].register_forward_pre_hook(fail)
    with pytest.raises(KeyError):
        grid.train_step(ours, GRID.batch(0))
    hook.remove()
    for step in (1, 2):
        off = abs(grid.train_step(ours, GRID.batch(step)) - train_step(single, theirs, GRID.batch(step)))
        assert off < 1e-11, f"step {step}: the loss is off by {off:.1e}"
