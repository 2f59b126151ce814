"""Tokens queue for experts: places found, tokens dropped, places left empty, and the layer's costs.

A made-up router gives each token its first and second choice; skew is its preference for some experts. Capacity,
places and traffic are the library's (`model.experts`, `parallel.dispatch`), parameters, FLOPs and the traffic in
balance `predict`'s. The table holds the router's choices and the formulas' numbers; since queues depend on all controls
at once, the script gives out the places again, as `find_places` does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import Picture, series_color
from course_lib.model.experts import ExpertConfig, find_places
from course_lib.model.seeds import mix
from course_lib.parallel.experts import DispatchPlan, holdings, plan_dispatch
from course_lib.parallel.mesh import Mesh
from course_lib.predict import expert_traffic, layer_flops
from course_pages.lesson13.pictures import queues

TOKENS, EXPERTS, TOP_K, RANKS = (16, 32, 64), (2, 4, 8, 16), (1, 2), (1, 2, 4, 8)
CAPACITY_FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, None)
SKEWS = (0.0, 0.5, 1.0, 2.0, 4.0)
WIDTH, HIDDEN, ELEMENT_BYTES = 1024, 4096, 2
"""Sizes of the layer: features of a token, hidden features of an expert, bytes of a number in the stream."""


@cache
def choices(experts: int, skew: float) -> Int[Tensor, "tokens choices"]:
    """First and second choice of each token, for the largest number of tokens.

    An expert's popularity is r^-skew, r its place in a fixed order of favourites; a token draws two experts without
    replacement. Every skew takes the same random numbers for a token.
    """
    generator = torch.Generator().manual_seed(mix(experts))
    places = torch.randperm(experts, generator=generator).log1p()
    dice = torch.rand(max(TOKENS), experts, generator=generator, dtype=torch.float64)
    return (-skew * places - (-dice.log()).log()).topk(2).indices  # Gumbel's noise makes topk a draw


def layer(experts: int, top_k: int, capacity_factor: float | None) -> ExpertConfig:
    """The layer that these controls describe."""
    return ExpertConfig(WIDTH, HIDDEN, experts, top_k, capacity_factor)


def flops_of_token(experts: int, top_k: int) -> int:
    """FLOPs of a token's forward pass, unless the token is dropped."""
    return int(layer_flops(layer(experts, top_k, None), 1))


def parameters_of(experts: int) -> int:
    """Parameters of the layer, its router among them."""
    config = layer(experts, 1, None)
    return holdings(Mesh({"expert": 1}), config, 1)[0].parameters(config)


def sent_in_balance(tokens: int, top_k: int, capacity_factor: float | None, ranks: int) -> int:
    """Bytes that a rank sends in a step's four all-to-alls, if all experts get equally many."""
    config = layer(max(EXPERTS), top_k, capacity_factor)
    traffic = expert_traffic(config, Mesh({"expert": ranks}), tokens, ELEMENT_BYTES)
    return int(traffic["expert"].modelled_bytes["all_to_all"]) if ranks > 1 else 0


@cache
def experts_table() -> dict[str, Any]:
    """Choices, places and costs, in lists that follow `TOKENS`, `TOP_K`, `CAPACITY_FACTORS`, `RANKS` and `SKEWS`.

    Returns:
        "choices": experts → for each skew, of each token [first, second]. "capacity": experts → for each number of
        tokens, for each k, for each factor, places of an expert, None for no limit. "sent": for each number of tokens,
        for each k, for each factor, for each number of ranks, bytes in balance. "parameters": experts → number.
        "flops": experts → for each k, of a token. "dense": [parameters, FLOPs of a token] of one MLP. "row": bytes of a
        token. "colors": of first and second choices.
    """
    return {
        "choices": {experts: [choices(experts, skew).tolist() for skew in SKEWS] for experts in EXPERTS},
        "capacity": {
            experts: [
                [[layer(experts, k, factor).capacity(tokens) for factor in CAPACITY_FACTORS] for k in TOP_K]
                for tokens in TOKENS
            ]
            for experts in EXPERTS
        },
        "sent": [
            [[[sent_in_balance(tokens, k, factor, p) for p in RANKS] for factor in CAPACITY_FACTORS] for k in TOP_K]
            for tokens in TOKENS
        ],
        "parameters": {experts: parameters_of(experts) for experts in EXPERTS},
        "flops": {experts: [flops_of_token(experts, k) for k in TOP_K] for experts in EXPERTS},
        "dense": [2 * WIDTH * HIDDEN, 4 * WIDTH * HIDDEN],
        "row": WIDTH * ELEMENT_BYTES,
        "colors": [series_color(choice) for choice in range(max(TOP_K))],
    }


class ExpertsExplorer(Explorer):
    """A queue for each expert, places and a line behind them, and the layer against a dense one.

        ExpertsExplorer().show()                                          # 32 tokens, 8 experts, two choices each
        ExpertsExplorer(top_k=1, capacity_factor=1.0, skew=4.0).show()    # a router that has collapsed

    `explorer.kept` has the choices with a place, `explorer.plan` the rows from rank to rank; then `explorer.costs`.

    Args:
        tokens: number on all ranks together, in one group: 16, 32 or 64. Each rank brings equally many.
        experts: 2, 4, 8 or 16.
        top_k: number of experts that a token goes to, 1 or 2.
        capacity_factor: one of `CAPACITY_FACTORS`; None: no token is dropped.
        skew: one of `SKEWS`, the router's preference for some experts.
        ranks: number of ranks that share the experts, at most the number of experts.
        token: the marked token.
    """

    caption = "A choice above the line is dropped. How much capacity does a skewed router need, and what stays empty?"
    tokens = Control("Tokens", TOKENS, 32)
    experts = Control("Experts", EXPERTS, 8)
    top_k = Control("Experts of a token (k)", TOP_K, 2)
    capacity_factor = Control(
        "Capacity factor", CAPACITY_FACTORS, 1.25, lambda c: "no limit" if c is None else f"{c:g}"
    )
    skew = Control("Skew of the router", SKEWS, 1.0, lambda s: f"{s:g}" if s else "none")
    ranks = Control("Ranks", RANKS, 4, limit=("experts", lambda experts: min(experts, max(RANKS))))
    token = Control("Look at token", range(max(TOKENS)), 0, limit=("tokens", lambda tokens: tokens - 1))
    _table = staticmethod(experts_table)

    @property
    def config(self) -> ExpertConfig:
        """The layer."""
        return layer(self.experts, self.top_k, self.capacity_factor)

    @property
    def wanted(self) -> Int[Tensor, "tokens choices"]:
        """Experts that each token goes to, its first choice first."""
        return choices(self.experts, self.skew)[: self.tokens, : self.top_k]

    @property
    def kept(self) -> Bool[Tensor, "tokens choices"]:
        """Choices that find a place."""
        return find_places(self.wanted, self.experts, self.config.capacity(self.tokens))

    @property
    def plan(self) -> DispatchPlan:
        """Rows from each rank to each rank's experts."""
        counts_TkE = F.one_hot(self.wanted, self.experts)
        counts_PkE = counts_TkE.unflatten(0, (self.ranks, -1)).sum(1)
        return plan_dispatch(counts_PkE, self.config.capacity(self.tokens))

    @property
    def empty(self) -> int | None:
        """Places that no token takes; None if there is no limit."""
        capacity = self.config.capacity(self.tokens)
        return None if capacity is None else self.experts * capacity - int(self.kept.sum())

    @property
    def costs(self) -> dict[str, tuple[float, float]]:
        """Costs of the layer, and the numbers to hold them against.

        Returns:
            "parameters" and "flops" (of a token, forward) against one dense MLP; "rows" of the rank that computes most
            against the mean; "sent", bytes of the rank that sends most in a step's four all-to-alls, against those of
            all experts getting equally many.
        """
        plan, row = self.plan, WIDTH * ELEMENT_BYTES
        sent = [2 * (plan.sent_bytes(rank, row) + plan.returned_bytes(rank, row)) for rank in range(self.ranks)]
        rows = [sum(plan.loads(rank)) for rank in range(self.ranks)]
        balance = sent_in_balance(self.tokens, self.top_k, self.capacity_factor, self.ranks)
        return {
            "parameters": (parameters_of(self.experts), 2 * WIDTH * HIDDEN),
            "flops": (flops_of_token(self.experts, self.top_k), 4 * WIDTH * HIDDEN),
            "rows": (max(rows), sum(rows) / self.ranks),
            "sent": (max(map(int, sent)), balance),
        }

    def _picture(self, *, caption: str, alt: str) -> Picture:
        capacity = self.config.capacity(self.tokens)
        return queues(self.wanted, self.kept, self.experts, capacity, caption=caption, alt=alt)

    def _told(self) -> str:
        capacity, kept = self.config.capacity(self.tokens), self.kept
        dropped, lost = int((~kept).sum()), (~kept).all(1).nonzero().flatten().tolist()
        lines = F.one_hot(self.wanted, self.experts).sum((0, 1)).tolist()
        places = "no limit" if capacity is None else f"{capacity} places each, {self.empty} of them empty"
        costs = {name: here / against if against else 1 for name, (here, against) in self.costs.items()}
        return (
            f"{self.tokens} tokens, {self.experts} experts, {self.top_k} a token, {places}. Queues of "
            f"{', '.join(map(str, lines))}; {dropped} of {kept.numel()} choices are dropped; tokens without any "
            f"expert: {', '.join(map(str, lost)) or 'none'}. Against a dense layer {costs['parameters']:.1f} times the "
            f"parameters and {costs['flops']:.1f} times the FLOPs of a token; on {self.ranks} ranks the busiest "
            f"computes {costs['rows']:.1f} times the mean and sends {costs['sent']:.1f} times what it would in balance."
        )
