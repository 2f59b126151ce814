"""A layer of experts on one device: a router chooses under a capacity, and every expert computes every token.

    layer = ExpertMLP(ExpertConfig(width=64, hidden=256, experts=8, top_k=2, capacity_factor=1.25))
    y = layer(x)                                    # in place of a block's MLP: x + layer(norm(x))
    loss = loss + 0.01 * layer.routing.load_balancing_loss() + 0.001 * layer.routing.z_loss()

An expert is an MLP. The router gives each token to `top_k` experts: one (Switch, Fedus et al. 2021) or two (GShard,
Lepikhin et al. 2020). An expert takes no more than its capacity; a choice beyond the capacity is dropped: the layer
adds 0 for this choice, and the residual stream around the layer carries the token on unchanged.

This layer is the oracle of `parallel.experts`: it computes all experts for all tokens and weighs most of the results
with 0, which takes `experts / top_k` times the work. Shape suffixes, besides those of `model.gpt`:

    T  tokens, of all sequences      E  experts      k  choices of a token, the best first      F  hidden features
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from course_lib.model.refusals import check_sizes
from course_lib.model.seeds import mix
from course_lib.model.tiled_attention import without_autocast


@dataclass(frozen=True)
class ExpertConfig:
    """The shape of a layer of experts, and its capacity.

    Attributes:
        width: features of a token.
        hidden: hidden features of one expert.
        experts, top_k: number of experts, and of those that a token goes to.
        capacity_factor: an expert's places over its equal share of all choices; None: no choice is dropped.

    Raises:
        ValueError: a size is no positive integer, `top_k` is above `experts`, or `capacity_factor` is not positive.
    """

    width: int
    hidden: int
    experts: int
    top_k: int = 2
    capacity_factor: float | None = None

    def __post_init__(self) -> None:
        check_sizes(width=self.width, hidden=self.hidden, experts=self.experts, top_k=self.top_k)
        if self.top_k > self.experts:
            raise ValueError(f"top_k={self.top_k}: a token cannot go to more than the {self.experts} experts")
        if self.capacity_factor is not None and not self.capacity_factor > 0:
            raise ValueError(f"capacity_factor={self.capacity_factor}: give a number above 0, or None to drop nobody")

    def capacity(self, tokens: int) -> int | None:
        """Places of each expert for so many tokens, rounded up; None if no choice is dropped.

        Source: Fedus et al. 2021, eq. 3, times `top_k`: a token takes a place with each of its choices.
        """
        if self.capacity_factor is None:
            return None
        places = self.capacity_factor * self.top_k * tokens / self.experts
        return math.ceil(round(places, 6))  # 1.1 · 2 · 50 / 10 is 11.000000000000002


class Choice(NamedTuple):
    """A router's choice for its tokens.

    Attributes:
        logits_TE: the router's scores, in 32 bits or more.
        probabilities_TE: softmax of the logits.
        experts_Tk: numbers of the experts that each token goes to, the best first.
        gates_Tk: weights of the sum over these experts' results.
    """

    logits_TE: Float[Tensor, "tokens experts"]
    probabilities_TE: Float[Tensor, "tokens experts"]
    experts_Tk: Int[Tensor, "tokens choices"]
    gates_Tk: Float[Tensor, "tokens choices"]


@dataclass(frozen=True)
class Routing:
    """The routes of a layer's tokens, with the router's graph, which the losses need.

    Tokens that share the experts' capacity are a *group* (GShard's word): here all tokens, in `parallel.experts` those
    of the ranks that share the experts. There both losses are this rank's term of a sum over the group's ranks.

    Attributes:
        choice: the router's choice for this rank's tokens.
        kept_Tk: whether a choice found a place.
        first_E: number of the group's tokens with each expert as their first choice.
        tokens: number of the group's tokens.
    """

    choice: Choice
    kept_Tk: Bool[Tensor, "tokens choices"]
    first_E: Int[Tensor, " experts"]
    tokens: int

    def load_balancing_loss(self) -> Float[Tensor, ""]:
        """E · Σ f_e P_e: f_e the share of tokens that want expert e first, P_e its mean probability. 1 in balance.

        The shares are counts and have no gradient; the probabilities have one, which pulls each down in proportion to
        the demand for its expert. Source: Fedus et al. 2021, eq. 4, without its α; GShard's loss is 1/E² of this one.
        """
        share_E = self.first_E.to(self.choice.probabilities_TE.dtype) / self.tokens
        mean_E = self.choice.probabilities_TE.sum(0) / self.tokens  # not .mean(0): the group may be larger
        return len(share_E) * share_E @ mean_E

    def z_loss(self) -> Float[Tensor, ""]:
        """The mean of (log Σ exp logits)², which keeps logits small, so that 16 bits do not round a choice away.

        Source: Zoph et al. 2022 (ST-MoE), eq. 5.
        """
        return self.choice.logits_TE.logsumexp(-1).square().sum() / self.tokens


class Router(nn.Module):
    """One matrix, a softmax, and the best `top_k`.

    A single choice's probability is its gate (Switch); those of more choices are divided by their sum (GShard,
    algorithm 1), before any is dropped. The router computes in 32 bits or more (Fedus et al. 2021, §2.4).
    """

    def __init__(self, experts: int, width: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.weight = nn.Parameter(torch.empty(experts, width))

    def forward(self, x_TD: Float[Tensor, "tokens width"]) -> Choice:
        """Choose the experts and gates of each token."""
        wide = torch.promote_types(x_TD.dtype, torch.float32)
        with without_autocast(x_TD.device):
            logits_TE = torch.inner(x_TD.to(wide), self.weight.to(wide))  # not linear, which `CastPolicy` narrows
        probabilities_TE = logits_TE.softmax(-1)
        experts_Tk = self.choose(probabilities_TE)
        best_Tk = probabilities_TE.gather(1, experts_Tk)
        # Divided by itself, a single gate would be 1, and the router would get no gradient from the layer's result.
        gates_Tk = best_Tk if self.top_k == 1 else best_Tk / best_Tk.sum(-1, keepdim=True)
        return Choice(logits_TE, probabilities_TE, experts_Tk, gates_Tk)

    def choose(self, probabilities_TE: Float[Tensor, "tokens experts"]) -> Int[Tensor, "tokens choices"]:
        """The experts of each token, the most probable first."""
        return probabilities_TE.topk(self.top_k).indices


class BiasedRouter(Router):
    """A router that balances without a loss: where experts are chosen, and only there, each one has a bias.

    Gates remain those of the probabilities, so no gradient knows of the bias. Between steps `nudge` raises the bias of
    each expert that too few tokens wanted, and lowers that of the others, all by the same amount.

    Source: DeepSeek-AI 2024 (DeepSeek-V3), §2.1.2, with a rate of 0.001, there on sigmoids where we have a softmax.

    Attributes:
        bias_E: the number added to each expert's probability; 0 at first. The bias is saved with the weights, has no
            gradient, and stays in 32 bits when `.to` or `dtype` gives the layer 16 (not when `materialize` does).
    """

    bias_E: Tensor

    def __init__(self, experts: int, width: int, top_k: int) -> None:
        super().__init__(experts, width, top_k)
        self.register_buffer("bias_E", torch.zeros(experts))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BiasedRouter:
        """Move or cast the router, but leave the bias its dtype: small steps round to nothing in 16 bits."""
        bias_E = self.bias_E
        super()._apply(fn, recurse)
        if self.bias_E.dtype != bias_E.dtype:
            self.bias_E = bias_E.to(self.bias_E.device)
        return self

    def choose(self, probabilities_TE: Float[Tensor, "tokens experts"]) -> Int[Tensor, "tokens choices"]:
        """The experts of each token, the highest sum of probability and bias first."""
        return (probabilities_TE + self.bias_E).topk(self.top_k).indices

    def nudge(self, wanted_E: Int[Tensor, " experts"], rate: float = 0.001) -> None:
        """Move the biases towards balance. `wanted_E` counts each expert's choices, those of all ranks together."""
        self.bias_E += rate * (wanted_E.double().mean() - wanted_E).sign()


class ExpertMLP(nn.Module):
    """A router and its experts, in place of a block's `MLP`. No biases.

    Args:
        seed: names the initial weights: N(0, 0.02), drawn in fp32.
        dtype, device: those of the parameters.
        router: `Router`, or `BiasedRouter` for balance without a loss.

    Attributes:
        up_EDF, down_EFD: the experts' weights.
        routing: the routing of the last forward pass.
    """

    routing: Routing

    def __init__(
        self, config: ExpertConfig, seed: int = 0, dtype: torch.dtype | None = None,
        device: torch.device | str | None = None, router: type[Router] = Router,
    ) -> None:  # fmt: skip
        super().__init__()
        self.config = config
        self.router = router(config.experts, config.width, config.top_k)
        self.up_EDF = nn.Parameter(torch.empty(config.experts, config.width, config.hidden))
        self.down_EFD = nn.Parameter(torch.empty(config.experts, config.hidden, config.width))
        generator = torch.Generator().manual_seed(mix(seed))
        for parameter in self.parameters():
            with torch.no_grad():
                # device="cpu": the same numbers on every device
                parameter.copy_(torch.randn(parameter.shape, generator=generator, device="cpu") * 0.02)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Float[Tensor, "*dims width"]) -> Float[Tensor, "*dims width"]:
        """The sum over each token's experts of gate times result; 0 from an expert without a place for the token."""
        x_TD = x.flatten(0, -2)
        choice = self.router(x_TD)
        kept_Tk = find_places(choice.experts_Tk, self.config.experts, self.config.capacity(len(x_TD)))
        first_E = choice.experts_Tk[:, 0].bincount(minlength=self.config.experts)
        self.routing = Routing(choice, kept_Tk, first_E, len(x_TD))
        gates_TE = torch.zeros_like(choice.logits_TE).scatter(1, choice.experts_Tk, choice.gates_Tk * kept_Tk)
        result_ETD = F.gelu(x_TD @ self.up_EDF, approximate="tanh") @ self.down_EFD
        return torch.einsum("te,etd->td", gates_TE.to(x.dtype), result_ETD).view_as(x)  # most gates are 0


def find_places(
    experts_Tk: Int[Tensor, "tokens choices"], experts: int, capacity: int | None
) -> Bool[Tensor, "tokens choices"]:
    """Mark the choices that find a place: an expert takes all first choices, then all second ones, in token order.

    Source: Lepikhin et al. 2020 (GShard), algorithm 1, without its random draw: a second choice is always sent.
    """
    if capacity is None:
        return torch.ones_like(experts_Tk, dtype=torch.bool)
    wants_QE = F.one_hot(experts_Tk.T.flatten(), experts)  # (T, k) -> (k, T) -> (Q, E): the queue, first choices first
    place_Q = (wants_QE.cumsum(0) * wants_QE).sum(-1)  # from 1, counted in the column of the wanted expert alone
    return (place_Q <= capacity).view(experts_Tk.T.shape).T
