"""A layer of experts on several ranks: ours beside plain PyTorch with `all_to_all_single`, in one run.

    python benchmarks/experts.py

Both have the same router, the same experts and the same tokens, drop no token, and are timed forward and backward on
ranks with one thread each; `turns.py` says how they are compared. The plain one is written as tutorials and training
libraries write it: the counts travel by an all-to-all, the tokens by torch's differentiable one, and each expert is a
product of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from turns import print_table, take_turns

from course_kit import ranks
from course_lib.collectives.operators import own_part
from course_lib.model.experts import ExpertConfig, ExpertMLP
from course_lib.parallel.experts import ParallelExperts

SIZES = {"width 64": (64, 256), "width 256": (256, 1024)}
EXPERTS, TOKENS = 8, 512


class Plain(nn.Module):
    """Experts over the ranks, without this course."""

    def __init__(self, layer: ExpertMLP) -> None:
        super().__init__()
        self.top_k, self.experts = layer.config.top_k, layer.config.experts
        self.router = nn.Parameter(layer.router.weight.detach().clone())
        self.up = nn.Parameter(own_part(layer.up_EDF.detach(), 0))
        self.down = nn.Parameter(own_part(layer.down_EFD.detach(), 0))
        self.router.register_hook(self.summed)

    @staticmethod
    def summed(grad: Tensor) -> Tensor:
        """The router's gradient over all ranks."""
        total = grad.clone()
        dist.all_reduce(total)
        return total

    def forward(self, x: Tensor) -> Tensor:
        """Sort by expert, send, compute, send back, unsort, weigh."""
        tokens, n_ranks, world = x.flatten(0, -2), dist.get_world_size(), dist.group.WORLD
        assert world is not None
        gates, chosen = F.linear(tokens, self.router).softmax(-1).topk(self.top_k)
        gates = gates if self.top_k == 1 else gates / gates.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=self.experts)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sends, receives = (each.view(n_ranks, -1).sum(1).tolist() for each in (counts, theirs))
        rows = tokens[order // self.top_k]
        arrived = all_to_all_single_autograd(rows, receives, sends, world)
        said = self.compute(arrived, theirs.view(n_ranks, -1))
        home = all_to_all_single_autograd(said, sends, receives, world)
        unsorted = torch.zeros_like(home).index_copy(0, order, home).view(-1, self.top_k, rows.shape[1])
        return (unsorted * gates[..., None]).sum(1).view_as(x)

    def compute(self, arrived: Tensor, counts: Tensor) -> Tensor:
        """Each expert with its own rows."""
        expert_of_row = torch.arange(counts.shape[1]).repeat(len(counts)).repeat_interleave(counts.flatten())
        said = torch.zeros_like(arrived)
        for number, (up, down) in enumerate(zip(self.up, self.down)):
            mine = (expert_of_row == number).nonzero()[:, 0]
            said = said.index_copy(0, mine, F.gelu(arrived[mine] @ up, approximate="tanh") @ down)
        return said


LAYERS: dict[str, Callable[[ExpertMLP], nn.Module]] = {
    "all_to_all_single": Plain,
    "ParallelExperts": ParallelExperts,
}


def time_steps(repeats: int, top_k: int) -> dict[str, list[float]]:
    """Seconds of each forward and backward pass on this rank; outputs and gradients of both must agree."""
    steps: dict[str, Callable[[], None]] = {}
    for size, (width, hidden) in SIZES.items():
        generator = torch.Generator().manual_seed(dist.get_rank())
        x = torch.randn(1, TOKENS, width, generator=generator)
        whole = ExpertMLP(ExpertConfig(width, hidden, EXPERTS, top_k))
        found = []
        for name, cut in LAYERS.items():
            layer = cut(whole)

            def step(layer: nn.Module = layer, x: Tensor = x) -> Tensor:
                layer.zero_grad(set_to_none=True)
                inputs = x.clone().requires_grad_()
                layer(inputs).square().sum().backward()
                return inputs.grad  # type: ignore[return-value]

            found.append(step())
            steps[f"{name}, {size}"] = step  # type: ignore[assignment]
        torch.testing.assert_close(*found)
    return take_turns(steps, repeats)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--world-size", type=int, default=2)
    given = parser.parse_args()
    with ranks.Ranks(given.world_size, timeout_s=600, diagnose=False) as pool:
        per_rank = pool.run(time_steps, given.repeats, given.top_k)
    print(
        f"torch {torch.__version__}, {given.world_size} ranks with 1 thread each, {EXPERTS} experts, "
        f"{given.top_k} for each of {TOKENS} tokens a rank"
    )
    print_table(per_rank, {f"{name}, {size}": f"all_to_all_single, {size}" for size in SIZES for name in LAYERS})


if __name__ == "__main__":
    main()
