"""One way to train under every wrapper, and the two that judge them: PyTorch's own, and a single process.

Everything here runs on ranks, and all ranks must call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.parallel.data import BucketedDataParallel, NaiveDataParallel
from course_lib.parallel.layerwise import units_of
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.parallel.zero3 import Zero3
from course_lib.train.precision import CastPolicy
from course_lib.train.recompute import RecomputedLayers, recompute_only
from tests.foreign.models import MODELS, Batch, Foreign

ADAM: dict[str, Any] = {"lr": 0.01, "eps": 0.01, "weight_decay": 0.1}
"""With ε as large as the rate, Adam's step is at most as far off as the gradient is: it enlarges no rounding."""
BUCKET = 3000
"""Bytes: every model has several buckets, and some parameters that are larger than one."""
ROWS = 3
"""Of a rank and pass."""

How = Literal["naive", "bucketed", "zero1", "zero2", "zero3"]
Weights = dict[str, Tensor]
State = dict[str, Tensor]


@dataclass
class Run:
    """A wrapped model in training.

    Attributes:
        model: what is called, and what a checkpoint saves.
        optimizer: steps once gradients are the mean.
        finish: to be called behind the last backward pass.
        quiet: a context for all passes but the last.
    """

    model: nn.Module
    optimizer: Any
    finish: Callable[[], None] = lambda: None
    quiet: Callable[[], AbstractContextManager[None]] = nullcontext

    def weights(self) -> State:
        """The model's state as a plain module has it, whole."""
        if isinstance(self.model, Zero3):
            return self.model.gathered_state_dict()
        inner = self.model.module if isinstance(self.model, NaiveDataParallel) else self.model
        return {name: tensor.detach().clone() for name, tensor in inner.state_dict().items()}


def start(how: How, foreign: Foreign, module: nn.Module, bucket_bytes: int = BUCKET, wrong: Any = None) -> Run:
    """Wrap a module; with a known-wrong class, if one is given, in place of ZeRO's."""
    if how == "zero3":
        sharded = (wrong or Zero3)(module, bucket_bytes=bucket_bytes, units=foreign.units(module))
        return Run(sharded, torch.optim.AdamW(sharded.parameters(), **ADAM), sharded.synchronize)
    if how in ("zero1", "zero2"):
        stage: Literal[1, 2] = 1 if how == "zero1" else 2
        settings: dict[str, Any] = {"bucket_bytes": bucket_bytes, **ADAM}
        zero = (wrong or ZeroOptimizer)(module.parameters(), torch.optim.AdamW, stage, **settings)
        return Run(module, zero)
    settings = {"bucket_bytes": bucket_bytes} if how == "bucketed" else {}
    replica = (BucketedDataParallel if how == "bucketed" else NaiveDataParallel)(module, **settings)
    rule = torch.optim.AdamW(module.parameters(), **ADAM)
    return Run(replica, rule, replica.synchronize, replica.no_sync)


def shares(batch: Batch, count: int) -> list[Batch]:
    """The batch in equal parts, one for each rank and pass."""
    chunks = {name: tensor.chunk(count) for name, tensor in batch.items()}
    return [{name: parts[i] for name, parts in chunks.items()} for i in range(count)]


def train(
    run: Run,
    foreign: Foreign,
    steps: Iterable[int],
    passes: int = 1,
    dtype: torch.dtype = torch.float32,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    rows: int | None = None,
) -> None:
    """Train on this rank's shares of the steps' batches, of `rows` in all; `around` each forward pass."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in steps:
        parts = shares(foreign.batch_of(step, rows or ROWS * ranks * passes, dtype), ranks * passes)
        run.optimizer.zero_grad()
        for number in range(passes):
            part = parts[number * ranks + rank]
            with run.quiet() if number < passes - 1 else nullcontext():
                with around():
                    loss = foreign.loss(run.model(**part), part) / passes
                loss.backward()
        run.finish()
        run.optimizer.step()


class Alone:
    """A single process that sees every share, one after the other, with a model and an optimizer of its own."""

    def __init__(self, module: nn.Module, foreign: Foreign) -> None:
        self.module, self.foreign = module, foreign
        self.optimizer = torch.optim.AdamW(module.parameters(), **ADAM)

    def train(self, steps: Iterable[int], count: int, rows: int | None = None) -> None:
        """Train on the whole batch of each step, in `count` shares; in 64 bits."""
        for step in steps:
            self.optimizer.zero_grad()
            for part in shares(self.foreign.batch_of(step, rows or ROWS * count, torch.float64), count):
                self.foreign.loss(self.module(**part), part).backward()
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad /= count
            self.optimizer.step()


class WithLoss(nn.Module):
    """A model that returns its loss alone: PyTorch's wrapper waits for all that the result depends on."""

    def __init__(self, module: nn.Module, foreign: Foreign) -> None:
        super().__init__()
        self.module, self.foreign = module, foreign

    def forward(self, batch: Batch) -> Tensor:
        """The loss."""
        return self.foreign.loss(self.module(**batch), batch)


def pytorchs(
    foreign: Foreign, module: nn.Module, steps: Iterable[int], around: Callable[[], AbstractContextManager[Any]]
) -> Weights:
    """The parameters after training under DistributedDataParallel. Batch norm's statistics stay each rank's own."""
    wrapped = DistributedDataParallel(
        WithLoss(module, foreign), find_unused_parameters=True, forward_sync_buffers=False
    )
    optimizer = torch.optim.AdamW(module.parameters(), **ADAM)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in steps:
        optimizer.zero_grad()
        with around():
            loss = wrapped(shares(foreign.batch_of(step, ROWS * ranks), ranks)[rank])
        loss.backward()
        optimizer.step()
    return parameters_of(module.state_dict(), module)


def parameters_of(state: State, module: nn.Module) -> Weights:
    """Copies of the parameters of a state."""
    return {name: state[name].detach().clone() for name, _ in module.named_parameters()}


def recomputed(module: nn.Module) -> nn.Module:
    """Recompute every block, in place."""
    for kind in {type(unit) for unit in units_of(module)}:
        recompute_only(module, kind)
    return module


def in_segments(module: nn.Module, every: int = 2) -> nn.Module:
    """Recompute segments of several blocks, in place."""
    lists = [name for name, each in module.named_modules() if isinstance(each, nn.ModuleList)]
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    for name in outer:
        module.set_submodule(name, RecomputedLayers(module.get_submodule(name), every))  # type: ignore[arg-type]
    return module


def distance(ours: Weights, theirs: Weights) -> dict[str, float]:
    """The largest difference of each weight, where there is one. NaN is an infinite one."""
    assert ours.keys() == theirs.keys(), f"{ours.keys() ^ theirs.keys()} are on one side only"
    off = {name: (ours[name].double() - theirs[name].double()).abs().nan_to_num(torch.inf).max() for name in ours}
    return {name: number.item() for name, number in off.items() if number != 0}


def against_pytorch(
    name: str, hows: Iterable[How], steps: int, change: Callable[[nn.Module], nn.Module] | None, cast: bool
) -> dict[How, dict[str, float]]:
    """How far each wrapper ends from PyTorch's, weight by weight. Ranks begin with different weights.

    Args:
        name: the model.
        hows: the wrappers.
        steps: how many.
        change: what is done to the module of ours before it is wrapped.
        cast: whether both run under a `CastPolicy`.
    """
    foreign, rank = MODELS[name], dist.get_rank()
    around = partial(CastPolicy, torch.bfloat16) if cast else nullcontext
    due = pytorchs(foreign, foreign.model(seed=rank), range(steps), around)
    found: dict[How, dict[str, float]] = {}
    for how in hows:
        module = foreign.model(seed=rank)
        run = start(how, foreign, change(module) if change else module)
        train(run, foreign, range(steps), around=around)
        found[how] = distance(parameters_of(run.weights(), foreign.model(seed=rank)), due)
    return found


def against_alone(
    name: str, hows: Iterable[How], steps: int, passes: int, wrong: Any = None
) -> dict[How, tuple[float, str]]:
    """The largest distance from the single process's weights after any step, and where; in 64 bits."""
    foreign, rank, dtype = MODELS[name], dist.get_rank(), torch.float64
    oracle = Alone(foreign.model(0, dtype), foreign)
    runs: dict[How, Run] = {how: start(how, foreign, foreign.model(rank, dtype), wrong=wrong) for how in hows}
    worst: dict[How, tuple[float, str]] = dict.fromkeys(runs, (0.0, ""))
    for step in range(steps):
        oracle.train([step], dist.get_world_size() * passes)
        due = parameters_of(oracle.module.state_dict(), oracle.module)
        for how, run in runs.items():
            train(run, foreign, [step], passes, dtype)
            off = distance(parameters_of(run.weights(), oracle.module), due)
            worst[how] = max([worst[how], *((number, f"{each}, step {step}") for each, number in off.items())])
    return worst


def against_masters(name: str, how: How, steps: int) -> dict[str, float]:
    """How far bf16 weights end from those of fp32 masters, stepped by the mean of all ranks' bf16 gradients.

    The mean is added up in fp32; where the model is whole on each rank, it is kept in the width of the gradients.
    """
    foreign, dtype = MODELS[name], torch.bfloat16
    single, ranks = foreign.model(0, dtype), dist.get_world_size()
    masters = {each: nn.Parameter(p.detach().float()) for each, p in single.named_parameters()}
    rule = torch.optim.AdamW(masters.values(), **ADAM)
    run = start(how, foreign, foreign.model(dist.get_rank(), dtype))
    for step in range(steps):
        rule.zero_grad()
        for part in shares(foreign.batch_of(step, ROWS * ranks, dtype), ranks):
            single.zero_grad()
            foreign.loss(single(**part), part).backward()
            for each, parameter in single.named_parameters():
                if parameter.grad is not None:
                    so_far = masters[each].grad
                    masters[each].grad = parameter.grad.float() if so_far is None else so_far + parameter.grad
        for master in masters.values():
            if master.grad is not None:
                mean = master.grad / ranks
                master.grad = mean if how == "zero3" else mean.to(dtype).float()
        rule.step()
        for each, parameter in single.named_parameters():
            parameter.data.copy_(masters[each])
        train(run, foreign, [step], dtype=dtype)
    return distance(parameters_of(run.weights(), single), parameters_of(single.state_dict(), single))
