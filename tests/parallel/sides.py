"""Wrappers as `parity` sees them: data parallelism, ZeRO 1 to 3, cut layers and sequences, grids."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.operators import own_part
from course_lib.parallel.hybrid import AXES
from course_lib.parallel.mesh import Mesh
from course_lib.parallel.tensor_gpt import shardings
from tests.parallel.judging import own
from tests.parallel.parity import (
    LIMIT,
    RULES,
    Pace,
    Side,
    Step,
    gradients_of,
    groups_of,
    loss_of,
    matrices_of,
    tensors_of,
)
from tests.parallel.problems import Problem


class Replicas(Side):
    """Data parallelism: `wrap(module)` has `no_sync`, and `synchronize`, or like DDP does without."""

    def __init__(self, wrap: Callable[..., Any], problem: Problem, optimizer: str) -> None:
        self.module, _ = problem(dist.get_rank())
        self.replica = wrap(self.module)
        kind, settings = RULES[optimizer]
        self.optimizer = kind(groups_of(self.module.named_parameters(), matrices_of(self.module)), **settings)

    def step(self, parts: list[tuple[Tensor, Tensor]], max_norm: float | None, pace: Pace) -> Step:
        for number, part in enumerate(parts):
            with self.replica.no_sync() if number < len(parts) - 1 else nullcontext():
                (self.replica(*own(part)) / len(parts)).backward()
        if hasattr(self.replica, "synchronize"):
            self.replica.synchronize()
        gradients = gradients_of(self.module)
        pace.step()
        return Step(None, None, gradients, self.weights())


class Zero(Side):
    """A sharded optimizer of a plain module: ZeRO's stages 1 and 2, or whole tensors dealt out."""

    def __init__(self, wrap: Callable[..., Any], problem: Problem, optimizer: str, stage: int = 1) -> None:
        self.module, _ = problem(dist.get_rank())
        for mine, whole in zip(self.module.buffers(), problem(0)[0].buffers()):
            mine.copy_(whole)  # an optimizer knows of parameters only
        kind, settings = RULES[optimizer]
        groups = groups_of(self.module.named_parameters(), matrices_of(self.module))
        self.optimizer = wrap(groups, kind, stage=stage, bucket_bytes=256, **settings)

    def step(self, parts: list[tuple[Tensor, Tensor]], max_norm: float | None, pace: Pace) -> Step:
        for part in parts:
            (self.module(*own(part)) / len(parts)).backward()
        norm = None if max_norm is None else self.optimizer.clip_grad_norm_(max_norm)
        pace.step()
        return Step(None, norm, {}, self.weights())


class Sharded(Side):
    """ZeRO-3, whose gradients and weights are gathered to be looked at."""

    def __init__(self, wrap: Callable[..., Any], problem: Problem, optimizer: str, **how: Any) -> None:
        module, _ = problem(dist.get_rank())
        self.inside, self.names, matrices = module, list(tensors_of(module)), matrices_of(module)
        self.trainable = [name for name, _ in module.named_parameters()]
        self.module: Any = wrap(module, **{"bucket_bytes": 300} | how)
        kind, settings = RULES[optimizer]
        self.optimizer = kind(groups_of(self.module.named_parameters(), matrices), **settings)

    def weights(self) -> dict[str, Tensor]:
        return self.module.gathered_state_dict()

    def step(self, parts: list[tuple[Tensor, Tensor]], max_norm: float | None, pace: Pace) -> Step:
        for part in parts:
            (loss_of(self.inside, self.module(*own(part))) / len(parts)).backward()
        self.module.synchronize()
        norm = None if max_norm is None else self.module.clip_grad_norm_(max_norm)
        gathered = self.module.gathered_gradients()
        pace.step()
        return Step(None, norm, {name: gathered.get(name) for name in self.trainable}, self.weights())

    def flaws(self) -> list[str]:
        names = list(self.module.gathered_state_dict())
        return [] if names == self.names else [f"the state has {names}, where {self.names} are due"]


class Cut(Side):
    """A GPT cut over all ranks, in its layers or along the sequence: `wrap(gpt)`. Every rank sees the whole batch."""

    shares_the_batch = False
    limit = 1e-11

    def __init__(self, wrap: Callable[..., Any], problem: Problem, optimizer: str) -> None:
        single, _ = problem(0)
        self.module = wrap(single)
        kind, settings = RULES[optimizer]
        self.optimizer = kind(groups_of(self.module.named_parameters(), matrices_of(single)), **settings)

    def part(self, name: str, whole: Tensor) -> Tensor:
        cut = shardings(self.module)[name]
        return own_part(whole, cut.dim, None, cut.blocks)

    def step(self, parts: list[tuple[Tensor, Tensor]], max_norm: float | None, pace: Pace) -> Step:
        loss = self.module(*parts[0])
        loss.backward()
        gradients = gradients_of(self.module)
        pace.step()
        return Step(loss.detach(), None, gradients, self.weights())


class Grid(Side):
    """Pipeline × data × tensor, with ZeRO: `wrap(config, mesh, ...)`. Every rank sees the whole batch."""

    shares_the_batch = is_grouped = False
    limit, norm_limit = LIMIT, LIMIT

    def __init__(
        self, wrap: Any, problem: Any, optimizer: str, sizes: Any, order: Any = AXES, zero: int = 0, **how: Any
    ) -> None:
        lengths = dict(zip(AXES, sizes))
        how = {"micro_batches": 2, "dtype": torch.float64, "zero": zero} | how
        self.grid = wrap(problem.config, Mesh({axis: lengths[axis] for axis in order}), **how)
        kind, settings = RULES[optimizer]
        self.optimizer = self.grid.optimizer(kind, **settings)
        self.zero, self.replicas, self.taken = zero, lengths["data"], 0
        self.known: dict[str, Any] = {}
        for stage in self.grid.stages.values():
            self.known |= shardings(stage.module if zero == 3 else stage)

    def weights(self) -> dict[str, Tensor]:
        if self.zero == 3:
            return self.named(lambda stage: stage.gathered_state_dict())
        return self.named(lambda stage: dict(stage.named_parameters()))

    def named(self, tensors: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Of every stage; a tied table may be in two of them."""
        found = {number: tensors(stage) for number, stage in self.grid.stages.items()}
        return {f"stage {number}: {name}": tensor for number in found for name, tensor in found[number].items()}

    def part(self, name: str, whole: Tensor) -> Tensor:
        cut = self.known[name]
        return own_part(whole, cut.dim, self.grid.groups["tensor"], cut.blocks)

    def step(self, parts: list[tuple[Tensor, Tensor]], max_norm: float | None, pace: Pace) -> Step:
        """Whoever asks for the norm goes step by step; in the second step nobody does."""
        norm, self.taken = None, self.taken + 1
        if max_norm is None or self.taken == 2:
            loss = self.grid.train_step(self.optimizer, parts[0], max_norm)
        else:
            loss = self.grid.forward_backward(parts[0])
            norm = self.grid.clip_grad_norm_(self.optimizer, max_norm)
            self.optimizer.step()
        gradients = {} if self.zero else self.named(gradients_of)
        return Step(torch.as_tensor(loss), norm, gradients, self.weights())

    def flaws(self) -> list[str]:
        """The optimizer keeps its state of a part of this rank's parameters, but for one row of padding a bucket."""
        kept = sum(p.numel() for p in getattr(self.optimizer, "optimizer", self.optimizer).state)
        parts = self.replicas if self.zero else 1
        due = -(-sum(p.numel() for p in self.grid.parameters()) // parts)
        most = due + parts * len(list(self.grid.parameters()))
        return [] if kept <= most else [f"keeps the state of {kept} elements, where {due} are due"]
