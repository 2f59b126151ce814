"""A GPT cut into pipeline stages: where to cut, and the stages themselves.

Layers are numbered as in `GPT`: 0 is the embeddings, 1 to L are the blocks, L + 1 is the final norm with the head and
the loss. `predict.tensors` lists the tensors of a stage.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_lib.model.gpt import GPT, GPTConfig


class GPTStage(GPT):
    """Some consecutive layers of a GPT, by number. Parameters have the names and values of the whole model of `config`.

    With tied embeddings the last stage holds a copy of the token embedding, for the head. Both copies begin equal, and
    stay so if both take their steps with the sum of the two gradients (`Pipeline` sees to it).

    Raises:
        ValueError: the model has no such layers.
    """

    def __init__(self, config: GPTConfig, layers: range, seed: int = 0, dtype: torch.dtype | None = None) -> None:
        super().__init__(config, device="meta", dtype=dtype)  # all layers, as shapes without memory
        last = config.layers + 1
        if not layers or layers.step != 1 or layers.start < 0 or layers.stop > last + 1:
            raise ValueError(f"layers={layers}: give a range within 0 (embeddings) to {last} (final norm and head)")
        self.is_first, self.is_last = 0 in layers, last in layers
        if not self.is_first:
            self.position_embedding = self.embedding_dropout = None  # type: ignore[assignment]
        if not self.is_last:
            self.final_norm = self.head = None  # type: ignore[assignment]
        if not (self.is_first or (self.is_last and config.tied)):
            self.token_embedding = None  # type: ignore[assignment]
        # a dict, not a list: the blocks keep the whole model's numbers in their names
        here = {number: block for number, block in self.blocks.named_children() if int(number) + 1 in layers}
        self.blocks = nn.ModuleDict(here)  # type: ignore[assignment]
        self.to_empty(device=torch.get_default_device())
        self.initialize(seed)

    @property
    def tied_weight(self) -> Tensor | None:
        """The weight that another stage holds, too; the gradient here is one of two terms."""
        shared = self.config.tied and self.is_first != self.is_last
        return self.token_embedding.weight if shared and self.token_embedding is not None else None

    def recv_buffer(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq width"]:
        """Memory for the stream from the stage before, or for its gradient."""
        some = next(self.parameters())
        return torch.empty(*tokens.shape, self.config.width, dtype=some.dtype, device=some.device)

    def forward(self, x: Tensor, targets: Int[Tensor, "batch seq"] | None = None) -> Tensor:
        """Tokens (on the first stage) or the stream in; the stream or, on the last stage, logits or the loss out."""
        x = self.run_blocks(self.embed(x) if self.is_first else x)
        return self.logits_or_loss(x, targets) if self.is_last else x

    def run_blocks(self, x: Float[Tensor, "batch seq width"]) -> Float[Tensor, "batch seq width"]:
        """The stream behind this stage's last block."""
        for block in self.blocks.children():
            x = block(x)
        return x


def partition_layers(costs: Sequence[float], stages: int) -> list[range]:
    """Consecutive layers for each stage, so that the most expensive stage costs as little as possible.

    A pipeline goes at the pace of its slowest stage: equal numbers of layers are not equal costs, since a head over a
    large vocabulary takes as long as several blocks. (`layer_seconds` measures the costs.)

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
        seconds.append(min(times[1:]))  # the first one warms up
    return seconds
