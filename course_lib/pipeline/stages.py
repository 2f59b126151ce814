"""A GPT cut into pipeline stages: where to cut, and the stages themselves.

Layers are numbered as in `GPT`: 0 is the embeddings, 1 to L are the blocks, L + 1 is the final norm with the head and
the loss. What a stage holds is in `predict.per_rank`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_lib.model.gpt import GPT, GPTConfig, initialize, loss_of


class GPTStage(nn.Module):
    """Some consecutive layers of a GPT. Parameters have the whole model's names and values.

    With tied embeddings the last stage holds a copy of the token embedding, for the head. Both copies begin equal, and
    stay so if both take their steps with the sum of the two gradients (`Pipeline` sees to it).

    Args:
        config: of the whole model.
        layers: the numbers of the layers that are here.
        seed, dtype: as for `GPT`.

    Raises:
        ValueError: the model has no such layers.
    """

    def __init__(self, config: GPTConfig, layers: range, seed: int = 0, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        last = config.layers + 1
        if not layers or layers.step != 1 or layers.start < 0 or layers.stop > last + 1:
            raise ValueError(f"layers={layers}: give a range within 0 (embeddings) to {last} (final norm and head)")
        self.config, self.is_first, self.is_last = config, 0 in layers, last in layers
        whole = GPT(config, device="meta", dtype=dtype)  # shapes only
        self.token_embedding = whole.token_embedding if self.is_first or (self.is_last and config.tied) else None
        self.position_embedding = whole.position_embedding if self.is_first else None
        self.embedding_dropout = whole.embedding_dropout if self.is_first else None
        self.blocks = nn.ModuleDict({str(n - 1): whole.blocks[n - 1] for n in layers if 0 < n < last})
        self.final_norm = whole.final_norm if self.is_last else None
        self.head = whole.head if self.is_last else None
        self.to_empty(device=torch.get_default_device())
        self._initialize(seed)

    def _initialize(self, seed: int) -> None:
        parts: dict[int, list[nn.Module | None]] = {0: [self.token_embedding, self.position_embedding]}
        parts |= {int(number) + 1: [block] for number, block in self.blocks.items()}
        parts |= {self.config.layers + 1: [self.final_norm, self.head]}
        for layer, modules in parts.items():
            initialize(nn.ModuleList(m for m in modules if m is not None), self.config, seed, layer)

    @property
    def tied_weight(self) -> Tensor | None:
        """The weight that another stage holds, too: its gradient is only a part of the whole one."""
        shared = self.config.tied and self.is_first != self.is_last
        return self.token_embedding.weight if shared and self.token_embedding is not None else None

    def recv_buffer(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq width"]:
        """Room for what comes from the stage before, or for its gradient."""
        some = next(self.parameters())
        return torch.empty(*tokens.shape, self.config.width, dtype=some.dtype, device=some.device)

    def forward(self, x: Tensor, targets: Int[Tensor, "batch seq"] | None = None) -> Tensor:
        """Tokens (on the first stage) or the stream in; the stream or, on the last stage, logits or the loss out."""
        if self.is_first:
            assert self.token_embedding is not None and self.embedding_dropout is not None
            positions = torch.arange(x.shape[1], device=x.device)
            x = self.token_embedding(x)
            if self.position_embedding is not None:
                x = x + self.position_embedding(positions)
            x = self.embedding_dropout(x)
        for block in self.blocks.values():
            x = block(x)
        if not self.is_last:
            return x
        head = self.token_embedding if self.head is None else self.head
        assert self.final_norm is not None and head is not None
        logits = F.linear(self.final_norm(x), head.weight)
        return logits if targets is None else loss_of(logits, targets)


def cut(costs: Sequence[float], stages: int) -> list[range]:
    """Consecutive layers for each stage, so that the most expensive stage costs as little as possible.

    A pipeline goes at the pace of its slowest stage: equal numbers of layers are not equal costs, since a head over a
    large vocabulary takes as long as several blocks.

    Args:
        costs: of the layers, in order (`layer_seconds` measures them).
        stages: how many.

    Raises:
        ValueError: there are fewer layers than stages.
    """
    if not 1 <= stages <= len(costs):
        raise ValueError(f"{len(costs)} layers cannot be cut into {stages} stages of one or more layers each")
    # best[n]: the lowest possible cost of the dearest stage, and the ends of the stages, for the first n layers
    best = {n: (sum(costs[:n]), [n]) for n in range(1, len(costs) + 1)}
    for stage in range(2, stages + 1):
        best = {
            n: min((max(best[m][0], sum(costs[m:n])), [*best[m][1], n]) for m in range(stage - 1, n))
            for n in range(stage, len(costs) + 1)
        }
    ends = best[len(costs)][1]
    return [range(start, end) for start, end in zip([0, *ends], ends)]


def layer_seconds(config: GPTConfig, tokens: Int[Tensor, "batch seq"], repeats: int = 5) -> list[float]:
    """The seconds that each layer takes for a forward and a backward pass of one micro-batch: the fastest of some."""
    seconds = []
    for layer in range(config.layers + 2):
        stage = GPTStage(config, range(layer, layer + 1))
        x = tokens if stage.is_first else torch.randn_like(stage.recv_buffer(tokens)).requires_grad_()
        times = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            stage(x, tokens).sum().backward()
            times.append(time.perf_counter() - start)
        seconds.append(min(times[1:]))
    return seconds
