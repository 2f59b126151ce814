"""Models that make parallelism hard, each with its batches: a seed → the model, and step → the batch of all ranks."""

import dataclasses
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_lib.model.gpt import GPT, GPTConfig
from course_lib.train.accumulate import IGNORE
from course_lib.train.recompute import recompute

TINY = GPTConfig(layers=2, width=8, heads=2, vocab_size=11, context=6)
Problem = Callable[[int], tuple[nn.Module, Callable[[int], tuple[Tensor, Tensor]]]]


@dataclasses.dataclass(frozen=True)
class Text:
    """A GPT in float64, and random tokens; `holes` are (row, position) from where on a row has no targets.

    Without a number of rows, there are two for each rank.
    """

    config: GPTConfig = TINY
    rows: int | None = None
    holes: tuple[tuple[int, int], ...] = ()

    def __call__(self, seed: int) -> tuple[nn.Module, Callable[[int], tuple[Tensor, Tensor]]]:
        return GPT(self.config, seed=seed, dtype=torch.float64), self.batch

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        shape = (self.rows or 2 * dist.get_world_size(), self.config.context + 1)
        tokens = torch.randint(0, self.config.vocab_size, shape, generator=torch.Generator().manual_seed(step))
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        for row, position in self.holes:
            targets[row, position:] = IGNORE
        return inputs, targets


gpt = Text()


class Odd(nn.Module):
    """Everything that makes data parallelism hard, in one small model.

    Its branch depends on the data, so on the rank; one layer is used twice, one is frozen, one is never used, one only
    in some steps; two dtypes; a buffer; memory that is not contiguous.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.twice = nn.Linear(4, 4)
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)
        self.frozen, self.never = nn.Linear(4, 3).requires_grad_(False), nn.Linear(4, 3)
        self.rare = nn.Parameter(torch.randn(3))
        self.double()
        self.small = nn.Parameter(torch.ones(3, dtype=torch.float32))
        self.turned = nn.Parameter(torch.randn(3, 4).double().t())
        self.register_buffer("offset", torch.randn(3).double())

    def forward(self, x: Tensor, choice: Tensor) -> Tensor:
        hidden = self.twice(torch.tanh(self.twice(x)))
        branch = self.left if choice[0] % 2 else self.right
        out = branch(hidden) + self.frozen(x) + x @ self.turned + self.offset
        if choice[0] >= 4:
            out = out * self.rare
        linear = (self.small * choice[0]).sum()  # so that float32's rounding stays in `small`
        return out.square().mean() + linear.double()


def _choices(step: int, each_step: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Inputs, and for each rank the branch that it takes."""
    world_size = dist.get_world_size()
    inputs = torch.randn(2 * world_size, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    choices = each_step[step % len(each_step)]
    return inputs, torch.tensor(choices[:world_size]).repeat_interleave(2)


def odd(seed: int) -> tuple[nn.Module, Callable[[int], tuple[Tensor, Tensor]]]:
    """The odd model and batches on which the ranks choose different branches, in other steps the same one."""
    choices = [[0] * 8, [0, 1] * 4, [0, 1, 5, 0, 1, 0, 4, 1], [4] * 8, [1, 0] * 4, [1] * 8]
    return Odd(seed), lambda step: _choices(step, choices)


class Gated(nn.Module):
    """A unit whose weight is computed from weights: a part of its graph that its input has no part in. Takes and
    returns dicts; in branch 1 a layer is not used."""

    def __init__(self, shared: nn.Linear) -> None:
        super().__init__()
        self.direction, self.length = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.ones(5, 1))
        self.shared, self.sometimes = shared, nn.Linear(5, 5)

    def forward(self, *, state: dict[str, Tensor], branch: int) -> dict[str, Tensor]:
        weight = self.length * self.direction / self.direction.norm(dim=1, keepdim=True)
        x = state["x"] + torch.tanh(self.shared(state["x"]) @ weight)
        return {"x": torch.tanh(x if branch else x + self.sometimes(x))}


class Units(nn.Module):
    """What makes units hard: a first one without a gradient for its input, a frozen one, a weight in two units, some
    that run twice and are recomputed, in two ways, one without weights, one that is smaller than the world."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        shared = nn.Linear(5, 5)
        self.layers = nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 5).requires_grad_(False), nn.Tanh(), nn.RMSNorm(5)])
        self.gated = nn.ModuleList([Gated(shared), Gated(shared), Gated(shared)])
        self.scale = nn.Parameter(torch.ones(1))
        self.double()
        self.offset: Tensor
        self.register_buffer("offset", torch.randn(5).double())

    def forward(self, x: Tensor, choice: Tensor) -> Tensor:
        first, frozen, tanh, norm = self.layers
        x = norm(tanh(frozen(tanh(first(x)))))
        state, branch = {"x": x + self.offset}, int(choice[0])
        for gated in self.gated:
            state = gated(state=state, branch=branch)
        state = recompute(self.gated[2], state=self.gated[1](state=state, branch=0), branch=branch)
        state = checkpoint(self.gated[0], state=state, branch=branch, use_reentrant=False)
        return (self.scale * state["x"]).square().mean()


def units(seed: int) -> tuple[nn.Module, Callable[[int], tuple[Tensor, Tensor]]]:
    """The model above, and batches that make the ranks choose different branches."""
    return Units(seed), lambda step: _choices(step, [[0] * 4, [1, 0, 1, 1], [1] * 4])
