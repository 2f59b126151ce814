"""One process is the oracle: `parity` trains beside it under a wrapper, and compares after every step.

    the batch of all ranks ──► one process ───────────► loss, norm, gradients, weights
              └──────────────► a `Side`: one wrapper ──► the same, or this rank's parts of them

The tests give it the library's wrappers, and the known-wrong ones of `tests/mutants/parallel`. All of it runs on
ranks, and raises on all of them at the same point: so one call on the ranks can refuse many.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.model.seeds import mix
from course_lib.train.muon import Muon
from course_lib.train.optim import Adafactor
from tests.parallel.judging import agree, off
from tests.parallel.problems import Problem

LIMIT = 1e4 * torch.finfo(torch.float64).eps
"""A few hundred roundings of numbers around 1, which Adam's division enlarges."""


def muon(groups: list[dict[str, Any]], **settings: float) -> Muon:
    """Muon for matrices, AdamW for the group without decay, as `groups_of` makes them."""
    return Muon([group | {"orthogonal": "weight_decay" not in group} for group in groups], **settings)


OPTIMIZERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}),
    "adam": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}
"""SGD sees a gradient that is scaled, Adam one that is turned."""
FAST: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {"fast": (torch.optim.SGD, {"lr": 0.5})}
OF_WHOLE_TENSORS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "muon": (muon, {"lr": 0.01, "weight_decay": 0.1}),
    "adafactor": (Adafactor, {"lr": 0.02, "eps": (1e-8, 1e-3)}),  # its own eps would divide rounding by rounding
}
"""Rules that a slice of a tensor cannot follow."""
RULES = OPTIMIZERS | OF_WHOLE_TENSORS | FAST
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "CosineAnnealingLR": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4),
    "OneCycleLR": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6),
}
"""The last one changes the momentum, too."""


class Pace:
    """One of torch's schedules; or "by hand", the loop's own, between backward pass and step."""

    def __init__(self, schedule: str, optimizer: Any) -> None:
        self.by_hand, self.optimizer, self.steps = schedule == "by hand", optimizer, 0
        self.schedule = SCHEDULES[schedule](optimizer) if schedule in SCHEDULES else None

    def step(self) -> None:
        """Step the optimizer, and the schedule after it."""
        for group in self.optimizer.param_groups if self.by_hand else ():
            group["lr"] = 0.05 / (1 + self.steps)
        self.steps += 1
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()


class Step(NamedTuple):
    """What there is after a step, and before the first: (no loss, no gradients). None is not compared.

    The oracle has tensors by name; a side may have two under one name, with different prefixes: "stage 0: name".
    """

    loss: Tensor | None
    norm: Tensor | None
    gradients: dict[str, Tensor | None]
    weights: dict[str, Tensor]


def matrices_of(module: nn.Module) -> set[str]:
    """Names of the weights that decay."""
    return {name for name, parameter in module.named_parameters() if parameter.ndim > 1}


def groups_of(named: Iterable[tuple[str, Any]], matrices: set[str]) -> list[dict[str, Any]]:
    """Matrices, and without decay all else, told apart by name: a shard has no dims."""
    named = list(named)
    rest = {"params": [p for name, p in named if name not in matrices], "weight_decay": 0.0}
    return [{"params": [p for name, p in named if name in matrices]}, rest]


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Copies of weights and buffers."""
    tensors = {**module.state_dict(), **dict(module.named_parameters())}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def gradients_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Copies, by name."""
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in module.named_parameters()}


def loss_of(module: nn.Module, result: Any) -> Tensor:
    """The result itself, if it is no structure that the module can open."""
    return getattr(module, "unwrap", lambda loss: loss)(result)


@functools.lru_cache(100)
def one_process(
    problem: Problem,
    optimizer: str,
    steps: int,
    shares: int,
    micro_batches: int,
    max_norms: tuple[float, ...],
    is_grouped: bool,
    schedule: str,
    set_to_none: bool,
    world_size: int,
) -> list[Step]:
    """The start and every step; a loss is the mean of the losses of `shares` equal shares of all micro-batches."""
    single, batch = problem(0)
    kind, settings = RULES[optimizer]
    named = single.named_parameters()
    stepper = kind(groups_of(named, matrices_of(single)) if is_grouped else single.parameters(), **settings)
    pace, found = Pace(schedule, stepper), [Step(None, None, {}, tensors_of(single))]
    for step in range(steps):
        torch.manual_seed(mix(1, step) % 2**63)
        parts = [batch(micro_batches * step + number) for number in range(micro_batches)]
        inputs, targets = (torch.cat(each) for each in zip(*parts))
        stepper.zero_grad(set_to_none=set_to_none)
        pairs = zip(inputs.chunk(shares), targets.chunk(shares))
        loss = torch.stack([loss_of(single, single(x, y)) for x, y in pairs]).mean()
        loss.backward()
        trainable, norm = [p for p in single.parameters() if p.requires_grad], None
        if max_norms:
            norm = torch.nn.utils.clip_grad_norm_(trainable, max_norms[step])
        gradients = gradients_of(single)
        pace.step()
        found.append(Step(loss.detach(), norm, gradients, tensors_of(single)))
    return found


class Side:
    """A wrapper and its optimizer, as `parity` sees them on this rank: its own share of a batch goes in."""

    optimizer: Any
    module: nn.Module
    shares_the_batch = True
    is_grouped = True
    limit: float | None = None
    norm_limit = 1e-6
    """Of the norm itself."""

    def weights(self) -> dict[str, Tensor]:
        """All, or those of this rank."""
        return tensors_of(self.module)

    def step(self, parts: list[tuple[Tensor, Tensor]], max_norm: float | None, pace: Pace) -> Step:
        """Gradients of these micro-batches, clipped if asked for, and the optimizer's step."""
        raise NotImplementedError

    def part(self, name: str, whole: Tensor) -> Tensor:
        """What this rank has of a tensor."""
        return whole

    def flaws(self) -> list[str]:
        """What else is wrong at the end."""
        return []

    def off(self, found: Step, wanted: Step) -> list[str]:
        """All that differs: what, and by how much."""
        said = []
        if found.loss is not None:
            said += off("loss", found.loss, wanted.loss, 1e-12)
        if found.norm is not None and wanted.norm is not None:
            said += off("norm", found.norm, wanted.norm, self.norm_limit * float(wanted.norm))
        for what, ours, theirs in (
            ("gradient", found.gradients, wanted.gradients),
            ("weight", found.weights, wanted.weights),
        ):
            for name, tensor in ours.items():
                plain = name.rpartition(": ")[2]
                due = theirs[plain]
                if tensor is not None and due is not None and tensor.shape != due.shape:
                    due = self.part(plain, due)
                said += off(f"{what} of {name}", tensor, due, self.limit)
        return said


def parity(
    side: Callable[..., Side],
    wrap: Callable[..., Any],
    problem: Problem,
    optimizer: str,
    *,
    steps: int = 3,
    micro_batches: int = 1,
    max_norms: tuple[float, ...] = (),
    schedule: str = "",
    set_to_none: bool = True,
    **how: Any,
) -> None:
    """At the start and after every step, all that `side` has of `wrap` is one process's. All ranks must call.

    Models start with other weights on every rank where a wrapper must broadcast them; biases and norms are a group of
    their own, without decay.
    """
    ours = side(wrap, problem, optimizer, **how)
    pace, (_, batch) = Pace(schedule, ours.optimizer), problem(0)
    shares = dist.get_world_size() * micro_batches if ours.shares_the_batch else 1
    case = problem, optimizer, steps, shares, micro_batches, max_norms, ours.is_grouped, schedule, set_to_none
    start, *wanted = one_process(*case, dist.get_world_size())
    where = f"{getattr(wrap, '__name__', wrap)} with {optimizer} {how or ''}"
    agree(ours.off(Step(None, None, {}, ours.weights()), start), f"{where} at the start: ")
    for step, due in enumerate(wanted):
        parts = [batch(micro_batches * step + number) for number in range(micro_batches)]
        ours.optimizer.zero_grad(**({} if set_to_none else {"set_to_none": False}))
        torch.manual_seed(mix(1, step) % 2**63)
        found = ours.step(parts, max_norms[step] if max_norms else None, pace)
        agree(ours.off(found, due), f"{where} in step {step}: ")
    agree(ours.flaws(), f"{where}: ")
