"""Runs of lesson 13's page: a town to learn by heart, a GPT with experts, a layer beside its reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_kit import measure
from course_kit.accounts import TrafficAccount
from course_kit.units import Count, Flops
from course_lib.collectives.operators import own_part
from course_lib.model import text
from course_lib.model.experts import BiasedRouter, ExpertConfig, ExpertMLP, Router
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.experts import ParallelExperts

Penalty = Callable[[Tensor, Tensor], Any]
STREETS, SHOPS = 48, 16
"""Streets in each direction; kinds of shop. So the town's map has 2,304 entries of 4 bits."""


class Run(NamedTuple):
    """A training run, step by step."""

    losses: list[float]  # of the text alone
    largest: list[float]  # the largest share of the tokens that want one expert of the last layer first
    dropped: list[float]  # share of the last layer's choices without a place
    alike: list[float]  # mean cosine of two of the last layer's inputs


def held_and_flops(config: ExpertConfig, tokens: int) -> tuple[Count, Flops]:
    """A layer's weights, and FLOPs that the kernels of its forward pass count, on one rank."""
    layer = ParallelExperts(ExpertMLP(config))  # unlike `ExpertMLP`, computes nothing but the choices
    with measure.flops() as counted:
        layer(torch.randn(tokens, config.width))
    return Count(sum(weight.numel() for weight in layer.parameters())), counted.total


def computed(
    rows: Float[Tensor, "rows width"], number: Int[Tensor, " rows"], up: Tensor, down: Tensor
) -> Float[Tensor, "rows width"]:
    """Outputs of experts for rows of tokens, each of which came for the expert `number`: one expert after the other."""
    said = torch.zeros_like(rows)
    for expert in range(len(up)):
        own = (number == expert).nonzero()[:, 0]
        said = said.index_add(0, own, F.gelu(rows[own] @ up[expert], approximate="tanh") @ down[expert])
    return said


class OwnExperts(nn.Module):
    """A copy of a layer's `router`, and this rank's experts, `up` and `down`. All ranks have built the layer alike."""

    counts: Tensor  # (ranks, experts of all ranks): rows that each rank sends to each expert in this step

    def __init__(self, whole: ExpertMLP) -> None:
        super().__init__()
        self.router = nn.Parameter(whole.router.weight.detach().clone())
        self.up, self.down = (nn.Parameter(own_part(each.detach(), 0)) for each in (whole.up_EDF, whole.down_EFD))

    def say(self, rows: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        """Outputs of this rank's experts for the rows that came: rank by rank, and of each rank by expert.

        If rank 0 sends 2 and 1 for this rank's two experts, and rank 1 sends 0 and 3, the rows are for 0 0 1 1 1 1.
        """
        mine = self.counts.chunk(len(self.counts), 1)[dist.get_rank()]
        number = torch.arange(len(self.up)).repeat(len(mine)).repeat_interleave(mine.flatten())
        return computed(rows, number, self.up, self.down)


def sent_in_a_step(kind: Callable[[ExpertMLP], Any]) -> tuple[Tensor, TrafficAccount]:
    """Counts and traffic of a step of 256 tokens a rank; the router prefers an expert of rank 0. All must call."""
    whole = ExpertMLP(ExpertConfig(64, 128, 8))
    whole.router.weight.data[0] += 0.05
    layer, x = kind(whole), torch.randn(256, 64, generator=torch.Generator().manual_seed(dist.get_rank())) + 0.2
    layer(x.requires_grad_()).sum().backward()  # the first step opens the connections
    with measure.traffic() as sent:
        layer(x).sum().backward()
    return layer.counts, sent


def farthest(kind: Callable[[ExpertMLP], Any]) -> float:
    """The largest difference of outputs and weights from the reference's in three steps; ranks split the tokens.

    Args:
        kind: makes of an `ExpertMLP` this rank's layer, with the attributes `router`, a matrix, and `up`.
    """
    torch.manual_seed(0)
    whole, most = ExpertMLP(ExpertConfig(32, 64, 8), dtype=torch.float64), 0.0
    rank, p, ours = dist.get_rank(), dist.get_world_size(), kind(whole)
    both = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (whole, ours)]
    for _ in range(3):
        x, y = torch.randn(2, 64, 32, dtype=torch.float64)
        said, own = whole(x), ours(x.chunk(p)[rank])
        for each in both:
            each.zero_grad()
        ((said - y).square().sum() + (own - y.chunk(p)[rank]).square().sum()).backward()
        dist.all_reduce(ours.router.grad)
        for each in both:
            each.step()
        pairs = [(own, said.chunk(p)[rank]), (ours.router, whole.router.weight), (ours.up, whole.up_EDF.chunk(p)[rank])]
        most = max(most, *((a - b).abs().max().item() for a, b in pairs))
    return most


def read_stories(layer: str, penalty: Penalty | None = None, steps: int = 300) -> Run:
    """Train a GPT of two layers on stories. Each rank trains one of its own, from seed 1 + 10 · rank.

    Args:
        layer: in the place of the MLPs: "nothing", "one MLP", "experts" (8, one choice, a capacity factor of 1.25), or
            "biased", the same with `BiasedRouter`.
        penalty: (probabilities, choices) of a layer → what its router pays; a tenth of it is added to the loss.
        steps: of 16 sequences of 32 bytes.
    """
    first_seed = 1 + 10 * dist.get_rank()
    gpt = GPT(GPTConfig(layers=2, width=32, heads=2, vocab_size=text.VOCAB_SIZE, context=32), seed=first_seed)
    config = (
        ExpertConfig(32, 32, 8, top_k=1, capacity_factor=1.25) if "MLP" not in layer else ExpertConfig(32, 32, 1, 1)
    )
    for seed, block in enumerate(gpt.blocks, first_seed):
        router = BiasedRouter if layer == "biased" else Router
        block.mlp = _Nothing() if layer == "nothing" else ExpertMLP(config, seed, router=router)
    layers: list[Any] = [] if layer == "nothing" else [block.mlp for block in gpt.blocks]
    optimizer, run = torch.optim.AdamW(gpt.parameters(), lr=3e-3), Run([], [], [], [])
    if layers:
        layers[-1].register_forward_pre_hook(lambda _, given: run.alike.append(_mean_cosine(given[0])))
    for step in range(steps):
        optimizer.zero_grad()
        loss = gpt(*text.stories(seed=0).batch(0, step, 0, 16, 32))
        routings = [each.routing for each in layers]
        paid = (
            sum(penalty(each.choice.probabilities_TE, each.choice.experts_Tk) for each in routings) if penalty else 0.0
        )
        (loss + 0.1 * paid).backward()
        optimizer.step()
        run.losses.append(loss.item())
        for each in layers:
            if layer == "biased":
                each.router.nudge(each.routing.first_E, rate=0.003)
        if routings:
            run.largest.append((routings[-1].first_E.max() / routings[-1].tokens).item())
            run.dropped.append(1 - routings[-1].kept_Tk.float().mean().item())
    return run


def _mean_cosine(inputs: Tensor) -> float:
    """The mean cosine of all pairs of rows: the squared length of the mean of their directions."""
    return F.normalize(inputs.detach().flatten(0, -2), dim=-1).mean(0).square().sum().item()


class _Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class Town(nn.Module):
    """A model of the shop at the corner of street a and avenue b: a vector for each, one layer, and a head."""

    def __init__(self, layer: ExpertMLP, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        width = layer.config.width
        self.street, self.avenue = nn.Embedding(STREETS, width // 2), nn.Embedding(STREETS, width // 2)
        self.layer, self.norm, self.head = layer, nn.LayerNorm(width), nn.Linear(width, SHOPS)

    def forward(self, corners: Int[Tensor, "corners 2"]) -> Float[Tensor, "corners shops"]:
        x = torch.cat([self.street(corners[:, 0]), self.avenue(corners[:, 1])], -1)
        return self.head(self.norm(x + self.layer(x)))


def learn_town(config: ExpertConfig, penalty: Penalty, steps: int = 400) -> list[float]:
    """The share of the town's corners that a model knows, every 20 steps. Each rank learns a town of its own."""
    dice = torch.Generator().manual_seed(dist.get_rank())
    corners = torch.cartesian_prod(torch.arange(STREETS), torch.arange(STREETS))
    shops, known = torch.randint(SHOPS, (len(corners),), generator=dice), []
    model = Town(ExpertMLP(config, seed=dist.get_rank()), seed=dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.01 * min(1, (step + 1) / 50) * (1 - step / steps)
        asked = torch.randint(len(corners), (len(corners) // 4,), generator=dice)
        loss = F.cross_entropy(model(corners[asked]), shops[asked])
        choice = model.layer.routing.choice
        optimizer.zero_grad()
        (loss + 0.01 * penalty(choice.probabilities_TE, choice.experts_Tk)).backward()
        optimizer.step()
        if step % 20 == 19:
            with torch.no_grad():
                known.append((model(corners).argmax(-1) == shops).float().mean().item())
    return known
